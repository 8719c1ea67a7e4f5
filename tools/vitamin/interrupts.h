// SPDX-License-Identifier: Apache-2.0
//
// Signals that ask vitamin itself to end, noted so that it can first undo what it has begun.
#pragma once

namespace vitamin::tools {

// From here on SIGINT, SIGTERM, SIGHUP and SIGQUIT are noted, but for those that our caller
// ignores. They interrupt a system call that waits. A program that is started has them as our
// caller gave them to us.
void watch_interrupts();

// The first one that came, or 0.
int interrupted();

// A file that meets a limit, or a pipe without a reader, is an error of the call and no
// end of vitamin: what it prints is not worth the exit code of the command.
void outlive_failed_writes();

// In a forked child, before exec: as our caller gave them to us, so that none is noted and lost.
void forget_interrupts();

}  // namespace vitamin::tools
