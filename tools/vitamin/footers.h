// SPDX-License-Identifier: Apache-2.0
//
// What `--help` of a verb says below its options.
#pragma once

namespace vitamin::tools {

inline constexpr const char* kMainFooter = R"(
Examples:
  vitamin doctor                                  is this machine ready?
  vitamin run -- python train.py                  run a program, see what was bound
  vitamin run --policy random --seed 7 -- ./app   a new part of the device for every launch
  vitamin run --help                              options, exit codes, how to read the report

A line about a problem ends with a code, like [VIT-301]: errors.md of the documentation
(/usr/share/doc/vitamin-cli) says what it means and what to do.
)";

inline constexpr const char* kRunFooter = R"(
Runs COMMAND with every kernel launch bound, at the moment of the launch, to a set of the device's
SMs. What the program computes does not change, to the bit; where it runs does.

Examples:
  vitamin run -- python train.py
      Run; at the end a table on stderr says how many launches were bound, moved and where.
  vitamin run --policy random --seed 7 --strict -- ./app --size 4096
      Move every launch to a new random part of the device. Exit code 123 unless all were bound.
  vitamin run --window 0 -- ./app
      Submit a launch only when all its predecessors have completed (the strict rule).
  vitamin run --daemon -- ./app
      Share the device with every other `vitamin run --daemon`: vitamind decides who runs where.
  vitamin run --quiet --report run.json -- ./app
      No table; the full report, for each process, device and library, as JSON in a file.

The report:
  bound      submitted to a partition that the policy chose (part of the device, or the whole)
  bridged    ordered by vitamin, but run on the program's own stream
  passed     handed to the driver untouched: vitamin could not manage it
  moved      ran on another partition than the launch before it in its stream

Exit codes:
  that of COMMAND; when a signal ended it, vitamin ends by the same signal (128+n in a shell)
  75   --daemon, none is to be had, and vitamin.toml says failure.absent = "closed"
  123  --strict, and COMMAND succeeded, but not every launch was bound (or none was seen)
  125  vitamin itself failed: wrong options, no usable library, report not writable
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found
Without --strict, missing coverage is a message on stderr and does not change the exit code.
)";

inline constexpr const char* kDoctorFooter = R"(
Examples:
  vitamin doctor                        what was found, what is missing, and what to do about it
  vitamin doctor --json                 the same for scripts; exit code 1: something is missing
  vitamin doctor --bundle bundle.json   and what a report of a bug needs, in a file
)";

inline constexpr const char* kStatusFooter = R"(
Below a device, one cell for each allocation unit: the letter of the client that has it; '.' no
client; '+' clients share it; '*' clients have it for themselves (one is overdue). '-' below a cell:
its grant drains. Then, since vitamind knows the device:
  grants        grants of SMs to streams
  moves         grants to a stream that had other SMs before
  gates closed  grants that were revoked; moves are not counted
  waiting       streams that wait for a grant now
  overdue       grants revoked without an answer of the client in time
  stale         returns of grants that no longer existed
"process N uses these SMs without vitamind": it runs under `vitamin run` without --daemon, and no
lease restrains it.

Columns of clients:
  SMs now     SMs on which the client has grants; parked: after `vitamin park`
  SM-seconds  these SMs multiplied by time, since it connected
  busy        of the SM-seconds, those with outstanding work; '-': not measured
  waited      seconds that its streams waited for grants, all streams together
  memory      device memory; '-': not known, for it has no memory quota
  class       its class in vitamin.toml; '-': none
  share       the narrowest quota of SMs that bounds it, and whose it is; '-': none

Examples:
  vitamin status                                      devices, leases and clients, once
  vitamin status --json                               the same for scripts
  vitamin status --socket /run/vitamin/vitamind.sock  the machine's vitamind
  vitamin status --prometheus http://localhost:9090   nodes and GPUs that Prometheus scrapes
)";

inline constexpr const char* kAccountingFooter = R"(
One line for each of the last 1,000 clients that ended, the newest last. `metrics.accounting` in
vitamin.toml names a file that keeps all of them.

Examples:
  vitamin accounting          what they used: SM-seconds, how long they had SMs and waited
  vitamin accounting --json   the same for scripts
)";

inline constexpr const char* kExplainFooter = R"(
CLIENT is the number of a client as `vitamin status` shows it, a job, a pod or a program.

Examples:
  vitamin explain           why each client has what it has, and what else was tried
  vitamin explain 3         of client 3 only
  vitamin explain train     of every client that runs `train`
  vitamin explain --json    the same for scripts

How to read it:
  A table has the candidates among which the policy chooses: which SMs each client would have.
    objective   how far the candidate leads (+) or lags (-) the one in force, ± its error
    blocks      how often it was measured; –: not, its numbers are predicted
    client      its SMs there and its speed, 1 as alone; or × its speed in the one in force
  Then a sentence for each client: what it has, what decided that, what it lacks.
)";

inline constexpr const char* kTopFooter = R"(
Examples:
  vitamin top             until interrupted; a vitamind that is started again is found again
  vitamin top --every 2   a look every two seconds
)";

inline constexpr const char* kDrainFooter = R"(
DEVICE is a UUID, an index as `nvidia-smi` and `vitamin doctor` count, or all.

Examples:
  vitamin drain 0                                          before maintenance of device 0
  vitamin drain GPU-5c0d8f1e-1a2b-4c3d-8e9f-0123456789ab   the same by UUID
  vitamin resume all                                       afterwards
)";

inline constexpr const char* kPolicyFooter = R"(
Examples:
  vitamin policy list
  vitamin policy test tpot-first
)";

inline constexpr const char* kVersionFooter = R"(
Examples:
  vitamin version --json
)";

inline constexpr const char* kCompletionFooter = R"(
Examples:
  vitamin completion bash > /etc/bash_completion.d/vitamin
)";

inline constexpr const char* kVerifyFooter = R"(
Runs COMMAND alone (once natively, twice under vitamin on the whole device), then under allocation
schedules with something else on the device: random for each launch, the narrowest part that can run
it, the extremes in turn, always narrow, always wide; then more random ones. Compares, to the byte,
what it prints and what else --check names, and audits what it launches.

Examples:
  vitamin verify -- python eval.py
  vitamin verify --runs 20 --check memory --report verify.html -- ./app
  vitamin verify --file weights.bin --tenant 'python train.py' -- python train.py --steps 50

Exit codes:
  0    deterministic under Vitamin: no difference
  1    not deterministic by itself: two runs alone differ
  2    broken by Vitamin: alone it equals itself, under vitamin it does not (please report it)
  3    inconclusive: it fails alone, nothing was compared, bound or moved, or blame is open
  125  vitamin itself failed: wrong options, no usable library
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found
  130  interrupted: everything was ended, the report says partial
COMMAND gets nothing on standard input; it runs in the current directory and may overwrite files
there.
)";

}  // namespace vitamin::tools
