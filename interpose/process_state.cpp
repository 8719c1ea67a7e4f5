// SPDX-License-Identifier: Apache-2.0
#include "interpose/process_state.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/client/local_arbiter.h"
#include "daemon/client/remote_arbiter.h"
#include "daemon/protocol/device_lock.h"
#include "hal/file_memory.h"
#include "interpose/resident_list.h"
#include "runtime/environment.h"
#include "runtime/profile/file.h"

namespace vitamin::interpose {

namespace environment = runtime::environment;
namespace stats = runtime::stats;

constinit std::atomic<bool> passive{false};
constinit thread_local int inside [[gnu::tls_model("initial-exec")]] = 0;

namespace {

constinit std::atomic<stats::ProcessPage*> the_page{nullptr};

constinit std::atomic<bool> managing{false};
constinit std::atomic<bool> forked{false};  // from a process that managed

// Where a process counts that has no run directory. Its memory is touched only when it is.
alignas(stats::ProcessPage) constinit unsigned char nowhere[sizeof(stats::ProcessPage)] = {};

// Why this process has no page although it has a run directory; 0: it has one.
constinit std::atomic<int> page_error{0};

// The child has the parent's page mapped; its own is made when it uses the driver. A driver that
// was in use cannot be used in the child, and our locks may be held by threads that are not there.
void in_child() {
  the_page.store(nullptr, std::memory_order_relaxed);
  if (!managing.load(std::memory_order_relaxed)) return;
  passive.store(true, std::memory_order_relaxed);
  forked.store(true, std::memory_order_relaxed);
}

void watch_forks() {
  static constinit std::atomic<bool> watching{false};
  if (!watching.exchange(true)) ::pthread_atfork(nullptr, nullptr, &in_child);
}

bool decimal(const char* name, std::uint64_t& value) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return false;
  char* end = nullptr;
  errno = 0;
  const std::uint64_t parsed = std::strtoull(text, &end, 10);
  if (*end != '\0' || errno != 0 || *text == '-') {
    warn(Problem::kVariable, "%s=%s is not a number; the default is used", name, text);
    return false;
  }
  value = parsed;
  return true;
}

// For the runs after this one, which may never end.
bool remember_resident_kernel(const char* kernel) {
  const char* file = std::getenv(environment::kWideOnly);
  return file != nullptr && *file != '\0' && add_to_resident_list(file, kernel);
}

// One write, so that lines of several processes do not mix.
void write_line(const char* line) {
  const hal::FileSignalGuard guard;
  if (::write(STDERR_FILENO, line, std::strlen(line)) < 0) return;
}

void say(const char* sentence) {
  char line[288];
  std::snprintf(line, sizeof line, "vitamin: %s\n", sentence);
  write_line(line);
}

// Empty: the arbiter is in this process.
std::string daemon_socket() {
  const char* const socket = std::getenv(environment::kDaemon);
  return socket != nullptr ? socket : "";
}

protocol::Claim claim_of_environment() {
  const auto text = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  protocol::Claim claim;
  claim.workload_class = text(environment::kClass);
  claim.job = text(environment::kJob);
  claim.mps_directory = text("CUDA_MPS_PIPE_DIRECTORY");
  std::uint64_t share = 0;
  if (!decimal(environment::kShare, share)) return claim;
  if (share >= 1 && share <= 100)
    claim.share = static_cast<std::uint32_t>(share);
  else
    warn(Problem::kVariable, "%s=%s is no percentage; the default is used", environment::kShare,
         std::getenv(environment::kShare));
  return claim;
}

// That this process decides about the device for itself alone is to be seen by those who come after
// it, until it ends, and who was there before is said. No more than that: natively it would run
// there, too. A directory that cannot be used hides it (`vitamin doctor` says so).
void decide_alone(const std::string& uuid) {
  // A process is there once, however often its contexts are made anew. Called under the registry
  // lock.
  static auto* seen = new std::unordered_map<std::string, protocol::DeviceLock>;
  const std::string directory = lock_directory();
  if (directory.empty() || seen->contains(uuid)) return;
  auto lock = protocol::DeviceLock::alone(directory, uuid);
  if (!lock) return;
  const protocol::DeviceUsers others = lock->others();
  seen->emplace(uuid, std::move(*lock));
  if (others.between_processes) {
    warn(
        Problem::kNotAlone,
        "%s shares device %s out among its clients, and this process, which is none of them, takes "
        "their SMs, too: vitamin run --daemon",
        ("vitamind (" + protocol::name_of_process(*others.between_processes) + ")").c_str(),
        uuid.c_str());
  } else if (!others.alone.empty()) {
    const std::size_t more = others.alone.size() - 1;
    warn(Problem::kNotAlone,
         "%s%s under Vitamin on device %s and, as this process, decides for itself: they take each "
         "other's SMs; vitamin run --daemon shares them out",
         protocol::name_of_process(others.alone.front()).c_str(),
         more == 0 ? " runs" : (" (and " + std::to_string(more) + " more) runs").c_str(),
         uuid.c_str());
  }
}

// The daemon's arbiter for a device, or, with the reason on stderr, none: then this process decides
// for itself, as it would natively.
std::unique_ptr<runtime::Arbiter> connect_to_daemon(const hal::DeviceInfo& info,
                                                    runtime::PoolLimits& limits) {
  client::RemoteOptions options;
  options.socket = daemon_socket();
  options.program = ::program_invocation_short_name;
  options.claim = claim_of_environment();
  options.report = [](const char* line) { warn(Problem::kDaemonLeft, "%s", line); };
  auto arbiter = client::RemoteArbiter::connect(options, info);
  if (!arbiter) {
    refuse_alone(arbiter.error().message.c_str());
    warn(Problem::kUncoordinated, "%s; this process runs without coordination",
         arbiter.error().message.c_str());
    decide_alone(info.uuid);
    return nullptr;
  }
  limits = (*arbiter)->limits();
  page().policy.set((*arbiter)->policy().c_str());
  return std::move(*arbiter);
}

std::unique_ptr<runtime::Arbiter> make_arbiter(const hal::DeviceInfo& info,
                                               runtime::PoolLimits& limits) {
  if (!daemon_socket().empty()) return connect_to_daemon(info, limits);
  decide_alone(info.uuid);
  return nullptr;
}

}  // namespace

void refuse_alone(const char* why) {
  std::uint64_t code = 0;
  if (!decimal(environment::kAbsent, code)) return;
  char line[288];
  std::snprintf(line, sizeof line,
                "vitamin: %s; vitamin.toml says that nothing runs without vitamind "
                "(failure.absent), so %s (process %d) ends. [%s]\n",
                why, ::program_invocation_short_name, ::getpid(),
                runtime::code_of(Problem::kUncoordinated));
  write_line(line);
  ::_exit(static_cast<int>(code & 0xff));
}

void loaded(const char* name) {
  if (std::getenv(environment::kRunDirectory) == nullptr) return;
  const char* preloaded = std::getenv("LD_PRELOAD");
  const char* first = preloaded != nullptr ? std::strstr(preloaded, "libvitamin_") : nullptr;
  if (first != nullptr && std::strncmp(first, name, std::strlen(name)) != 0) return;
  page().reach(stats::Stage::kLoaded);
}

stats::ProcessPage& page() {
  stats::ProcessPage* current = the_page.load(std::memory_order_acquire);
  if (current != nullptr) return *current;
  watch_forks();
  const char* directory = std::getenv(environment::kRunDirectory);
  stats::ProcessPage* made = nullptr;
  if (directory != nullptr && *directory != '\0') {
    made = stats::create(directory);
    page_error.store(made == nullptr ? errno : 0, std::memory_order_relaxed);
  }
  if (made == nullptr) made = reinterpret_cast<stats::ProcessPage*>(nowhere);
  // Two threads at once: one page too many lies in the directory, empty.
  if (the_page.compare_exchange_strong(current, made, std::memory_order_acq_rel)) current = made;
  return *current;
}

stats::DevicePage& device_page(unsigned ordinal) {
  stats::ProcessPage& process = page();
  stats::DevicePage* part = process.device(ordinal);
  const int error = part == nullptr ? errno : page_error.load(std::memory_order_relaxed);
  if (error != 0)
    VITAMIN_WARN_ONCE(Problem::kUncounted,
                      "launches of this process are not counted: no statistics page can be kept in "
                      "%s (%s); the program runs all the same",
                      std::getenv(environment::kRunDirectory), std::strerror(error));
  if (part != nullptr) return *part;
  return reinterpret_cast<stats::ProcessPage*>(nowhere)->devices[ordinal];
}

void note(const char* sentence) {
  const char* quiet = std::getenv(environment::kQuiet);
  if (quiet == nullptr || std::strcmp(quiet, "1") != 0) say(sentence);
}

void warn(Problem problem, const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  page().warn(text);
  char line[272];
  std::snprintf(line, sizeof line, "%s [%s]", text, runtime::code_of(problem));
  say(line);
}

void degrade(const char* why) {
  page().message.set(why);
  page().reach(stats::Stage::kDegraded);
  VITAMIN_WARN_ONCE(Problem::kNotManaged, "%s; the program runs without late binding", why);
}

void say_if_forked() {
  if (!forked.load(std::memory_order_relaxed)) return;
  VITAMIN_WARN_ONCE(Problem::kNotManaged,
                    "process %d is the child of a fork of a process that uses the GPU, whose "
                    "runtime fails, hangs or crashes here; start it with exec (Python: "
                    "multiprocessing's method \"spawn\")",
                    static_cast<int>(::getpid()));
}

void start_managing() {
  watch_forks();
  managing.store(true, std::memory_order_relaxed);
}

ProcessOptions process_options() {
  ProcessOptions result;
  result.dispatch.make_arbiter = &make_arbiter;
  if (!daemon_socket().empty()) {
    const char* const cooperative = std::getenv(environment::kCooperative);
    result.dispatch.cooperative_collective =
        cooperative == nullptr || std::strcmp(cooperative, "0") != 0;
  }
  if (const char* names = std::getenv(environment::kCollectives)) {
    std::istringstream parts(names);
    for (std::string part; std::getline(parts, part, ',');)
      if (!part.empty()) result.dispatch.collectives.push_back(part);
  }
  const char* policy = std::getenv(environment::kPolicy);
  result.policy = policy != nullptr && *policy != '\0' ? policy : "fifo";
  decimal(environment::kSeed, result.seed);
  const char* window = std::getenv(environment::kWindow);
  if (window == nullptr || std::strcmp(window, "max") != 0)
    decimal(environment::kWindow, result.dispatch.window.ahead_ns);
  if (std::uint64_t ahead = 0; decimal(environment::kAheadOfMove, ahead))
    result.dispatch.ahead_of_move = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, ahead));
  decimal(environment::kGraphMemory, result.dispatch.graph_bytes);
  if (const char* file = std::getenv(environment::kWideOnly); file != nullptr)
    result.dispatch.resident_kernels = read_resident_list(file);
  const char* const cautious = std::getenv(environment::kCautious);
  result.dispatch.cautious = cautious != nullptr && std::strcmp(cautious, "1") == 0;
  result.dispatch.on_hang = [](const char* kernel, std::uint32_t sms, double seconds) {
    const bool remembered = remember_resident_kernel(kernel);
    warn(Problem::kLongKernel,
         "kernel %s has run for %.0f s on %u SMs; it may wait for its own blocks. "
         "From now on%s it runs where all of them fit; "
         "if this launch does not end, start the program again",
         kernel, seconds, sms, remembered ? ", and in later runs," : "");
  };
  return result;
}

std::string lock_directory() {
  const char* const directory = std::getenv(environment::kLockDirectory);
  return directory != nullptr ? directory : environment::kUsualLockDirectory;
}

std::shared_ptr<runtime::Audit> make_audit(int ordinal) {
  const char* directory = std::getenv(environment::kAudit);
  if (directory == nullptr || *directory == '\0') return nullptr;
  auto audit = runtime::Audit::create(directory, static_cast<std::uint32_t>(ordinal));
  if (audit == nullptr)
    warn(Problem::kNoAudit, "the audit cannot write to %s; nothing is audited", directory);
  return audit;
}

std::shared_ptr<runtime::trace::Recorder> make_trace(int ordinal, const hal::DeviceInfo& info,
                                                     const ProcessOptions& options) {
  const char* directory = std::getenv(environment::kTrace);
  if (directory == nullptr || *directory == '\0') return nullptr;
  runtime::trace::TraceHeader header;
  header.ordinal = static_cast<std::uint32_t>(ordinal);
  header.seed = options.seed;
  options.policy.copy(header.policy, sizeof header.policy - 1);
  std::strncpy(header.program, ::program_invocation_short_name, sizeof header.program - 1);
  describe(header, info, options.dispatch.pool);
  std::shared_ptr<runtime::trace::Recorder> trace =
      runtime::trace::Recorder::create(directory, header);
  if (trace == nullptr) {
    warn(Problem::kTraceFile, "the trace cannot be written to %s (%s); nothing is recorded",
         directory, std::strerror(errno));
    return nullptr;
  }
  // What is in memory when the process ends is written out then, though other threads may still
  // hold it.
  static std::mutex mutex;
  static std::vector<std::weak_ptr<runtime::trace::Recorder>> all;
  const std::lock_guard lock(mutex);
  if (all.empty())
    std::atexit([] {
      if (passive.load(std::memory_order_relaxed)) return;  // the file is the parent's
      const std::lock_guard ending(mutex);
      for (const auto& weak : all)
        if (const auto recorder = weak.lock()) recorder->stop();
    });
  all.push_back(trace);
  return trace;
}

void set_up_profile(runtime::DispatchOptions& options, const std::string& model, int ordinal) {
  const char* directory = std::getenv(environment::kProfiles);
  if (directory == nullptr || *directory == '\0') return;
  const std::string path = runtime::profile_path(directory, model);
  if (::access(path.c_str(), F_OK) == 0) {
    auto known = runtime::read_profile(path, model);
    if (known)
      options.profiler.known = std::move(*known);
    else
      warn(Problem::kProfile, "%s; times are learnt anew", known.error().message.c_str());
  }
  std::uint64_t every = runtime::ProfilerOptions::kUsual;
  decimal(environment::kProfileEvery, every);
  options.profiler.every =
      static_cast<std::uint32_t>(std::clamp<std::uint64_t>(every, 1, 1U << 30));
  const char* run = std::getenv(environment::kRunDirectory);
  if (run == nullptr || *run == '\0') return;
  const std::string to = std::string(run) + '/' + std::to_string(::getpid()) + '.' +
                         std::to_string(ordinal) + ".profile";
  options.keep_profile = [to, model](const runtime::Profile& learnt) {
    if (const hal::Status kept = runtime::write_profile(to, learnt, model); !kept)
      VITAMIN_WARN_ONCE(Problem::kProfile, "%s", kept.error().message.c_str());
  };
}

hal::Result<runtime::MakeArbiter> make_policy(const ProcessOptions& options) {
  auto policy = client::local_arbiter(options.policy, options.seed,
                                      [](const char* line) { warn(Problem::kPolicy, "%s", line); });
  if (policy) page().policy.set(options.policy.c_str());
  page().window_ns.set(options.dispatch.window.ahead_ns);
  return policy;
}

}  // namespace vitamin::interpose
