// SPDX-License-Identifier: Apache-2.0
//
// What MPS's servers write of faults into server.log, of MPS's log directory. A fault may be over
// within 30 ms, long before anybody asks the control program for a server's status; the log keeps
// it.
//
//     [2026-11-22 17:50:31.901 Server 40287] Client {PID: 40285, Context: 1} encountered a fatal
//     GPU
//         error.                     (whose kernel it was it does not say: a neighbour may stand
//         here)
//     [... Server 40287] Server is handling a fatal GPU error.
//     [... Server 40287] The following client process have a sticky error set:
//     [... Server 40287] 40285       (every process that has lost its context, one a line)
//
// The file is looked at, not owned: what was there before is passed over; it may be cut, or
// replaced by another one; of one that grows without end only the newest part is read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitamin::daemon {

// As MPS names servers and clients: digits, one or more.
bool is_number(std::string_view text);

struct MpsFault {
  std::string server;                 // its process
  std::vector<std::string> affected;  // processes that have lost their context; may be none known
};

class MpsLog {
 public:
  static constexpr std::size_t kMostRead = 256 * 1024;  // of the file, a look

  explicit MpsLog(std::string path);
  // Faults that were written since the last look. One whose list of processes is still being
  // written is told at the next look, complete or not.
  std::vector<MpsFault> look();

 private:
  std::string appended();
  void take(std::string_view line, std::vector<MpsFault>& faults);
  void tell(std::vector<MpsFault>& faults);

  std::string path_;
  ino_t file_ = 0;
  off_t read_ = 0;                // of the file, so far
  std::string rest_;              // a line without its end
  std::optional<MpsFault> open_;  // not yet told
  bool lists_ = false;            // the lines that follow are its processes
  bool late_ = false;             // it was open at the look before, too
};

}  // namespace vitamin::daemon
