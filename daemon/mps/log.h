// SPDX-License-Identifier: Apache-2.0
//
// Reads faults from server.log in MPS's log directory. A fault may be over within 30 ms, before the
// control program is asked for a server's status again; the log keeps it.
//
//     [2026-11-22 17:50:31.901 Server 40287] Client {PID: 40285, Context: 1} encountered a
//         fatal GPU error.           (not necessarily the client whose kernel has failed)
//     [... Server 40287] Server is handling a fatal GPU error.
//     [... Server 40287] The following client process have a sticky error set:
//     [... Server 40287] 40285       (every process that has lost its context, one a line)
//
// MPS owns the file: contents from before are skipped; it may be truncated or replaced; of a file
// that grows fast only the newest part is read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitamin::daemon {

// Whether the text is one or more digits, as MPS names servers and clients.
bool is_number(std::string_view text);

struct MpsFault {
  std::string server;                 // process id
  std::vector<std::string> affected;  // process ids that have lost their context, if known
};

class MpsLog {
 public:
  static constexpr std::size_t kMostRead = 256 * 1024;  // bytes read at once

  explicit MpsLog(std::string path);
  // Faults that were written since the previous call. A fault whose list of processes is still
  // being written is returned by the next call, complete or not.
  std::vector<MpsFault> read_new();

 private:
  std::string appended();
  void take(std::string_view line, std::vector<MpsFault>& faults);
  void finish(std::vector<MpsFault>& faults);

  std::string path_;
  ino_t file_ = 0;
  off_t read_ = 0;                // bytes of the file read so far
  std::string rest_;              // an incomplete last line
  std::optional<MpsFault> open_;  // a fault that is not complete yet
  bool lists_ = false;            // the following lines are its processes
  bool late_ = false;             // it was incomplete after the previous call, too
};

}  // namespace vitamin::daemon
