// SPDX-License-Identifier: Apache-2.0
//
// Exit codes of the vitamin program, as env(1) and timeout(1) have them. `vitamin run` otherwise
// ends as its command did: the same code, or the same signal.
#pragma once

namespace vitamin::tools {

inline constexpr int kExitUnhealthy = 1;  // doctor: something is missing
// verify
inline constexpr int kExitNotByItself = 1;    // the command differs from itself
inline constexpr int kExitBroken = 2;         // under Vitamin it differs: a bug of ours
inline constexpr int kExitInconclusive = 3;   // it fails alone, or nothing could be compared
inline constexpr int kExitInterrupted = 130;  // by a signal; the report is partial

inline constexpr int kExitNoDaemon = 75;   // failure.absent = "closed": try again (EX_TEMPFAIL)
inline constexpr int kExitLater = 75;      // park, resume: not now, nothing changed: try again
inline constexpr int kExitCoverage = 123;  // run --strict: not every launch was bound
inline constexpr int kExitFailed = 125;    // vitamin itself failed, wrong usage included
inline constexpr int kExitNotExecutable = 126;  // the command cannot be executed
inline constexpr int kExitNotFound = 127;       // the command was not found

}  // namespace vitamin::tools
