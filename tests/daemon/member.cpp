// SPDX-License-Identifier: Apache-2.0
//
// member SOCKET VERB [N]: a client of vitamind without a device. It calls its arbiter as the
// preloaded library does, and does nothing else, so that a whole life takes milliseconds.
//
//   work N      submits N operations on four lanes, a few at a time, and prints a line of JSON;
//               0: until its input ends, and after MEMBER_MOVES grants at least that each moved a
//               lane to another partition
//   serve       until its input ends: a byte of input begins a request, which has an operation each
//               200 us; the next byte ends it
//   count [N]   as work 0; prints every 10 ms how many operations there were; the host takes N ns
//               for each
//   delay N     after a line of input requests a grant N times, each after a pause of about a
//               millisecond, and prints how long the answers took; mean_us: of those within 5 ms
//   hold [N]    takes a lease, prints it, submits one operation that does not end, and sleeps;
//               with N MiB of memory in use
//   away        takes a lease, prints it, submits one operation that does not end; after a line of
//               input submits another one on another lane and prints whether that used the fallback
//               partition; then as hold
//   latency     submits until its input ends; when the daemon is lost prints the time until it used
//               the fallback partition
//   homes       submits until it is killed; prints when it began to use the fallback partition, and
//               when it reconnected
//   scribble N  writes random bytes over all memory that it can write, for N milliseconds
//   hog N       the same over memory of its own, without a daemon: the load of the machine itself
//   greet N     opens N connections and sends nothing
//   skew        sends Hello of another version and prints the answer
//   first N     as work, but the process's first thread, which connected, ends before
//   exec        takes a lease, prints it, and executes `sleep` when its input ends
//   fork        the same, but forks a child instead, which prints what it sees and lives on
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/client/remote_arbiter.h"
#include "tests/daemon/device.h"
#include "tests/time_limit.h"

namespace vitamin {
namespace {

using std::chrono::steady_clock;

// The time-out for an answer of the daemon.
const auto kAnswerTimeout = std::chrono::duration_cast<std::chrono::milliseconds>(
    test::time_limit(std::chrono::milliseconds(3000)));

const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info = [] {
    const char* uuid = std::getenv("MEMBER_DEVICE");
    return uuid != nullptr ? tests::device_like_an_h200(uuid) : tests::device_like_an_h200();
  }();
  return info;
}

std::unique_ptr<client::RemoteArbiter> arbiter(const std::string& socket,
                                               std::chrono::nanoseconds spin = {}) {
  client::RemoteOptions options;
  if (spin.count() > 0) options.spin = spin;
  options.socket = socket;
  options.program = "member";
  if (const char* name = std::getenv("MEMBER_CLASS")) options.claim.workload_class = name;
  if (const char* step = std::getenv("MEMBER_JOB")) options.claim.job = step;
  if (const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY"))
    options.claim.mps_directory = directory;
  if (const char* share = std::getenv("MEMBER_SHARE"))
    options.claim.share = static_cast<std::uint32_t>(std::strtoul(share, nullptr, 10));
  // A busy machine is no daemon that is silent. MEMBER_SILENCE: in milliseconds.
  const char* silence = std::getenv("MEMBER_SILENCE");
  options.poll_timeout = silence != nullptr
                             ? std::chrono::milliseconds(std::strtol(silence, nullptr, 10))
                             : std::chrono::duration_cast<std::chrono::milliseconds>(
                                   test::time_limit(options.poll_timeout));
  options.handshake_timeout = kAnswerTimeout;
  auto made = client::RemoteArbiter::connect(options, device());
  if (!made) {
    std::printf("{\"refused\": \"%s\"}\n", made.error().message.c_str());
    std::exit(3);
  }
  return std::move(*made);
}

// Everything that a launch may go to, narrowest first, the whole device last.
std::vector<runtime::PartitionId> eligible_partitions(const runtime::PoolLayout& layout) {
  std::vector<runtime::PartitionId> partitions;
  for (const runtime::Partition& partition : layout.partitions())
    if (!partition.whole()) partitions.push_back(partition.id);
  partitions.push_back(runtime::kWholeDevice);
  return partitions;
}

// On the clock that tests read too.
double seconds_of(steady_clock::time_point at) {
  return std::chrono::duration<double>(at.time_since_epoch()).count();
}

// Submits as a pipeline does: asks, retries while nothing is to be had, and lets a few operations
// be outstanding. Work ends in the order in which it was submitted.
class Lane {
 public:
  Lane(runtime::Arbiter& arbiter, runtime::StreamId id,
       std::span<const runtime::PartitionId> eligible)
      : arbiter_(arbiter), id_(id), eligible_(eligible) {}

  // The partition, or kNoPartition: not yet.
  runtime::PartitionId try_submit() {
    if (choice_.launches == 0 || !arbiter_.admits(choice_.partition, id_)) {
      runtime::ReadyOperation operation;
      operation.stream = id_;
      operation.sms = 1 + id_ % 2 * 11;  // half of the lanes need more than a unit
      choice_ = arbiter_.grant(operation, eligible_);
      if (choice_.partition == runtime::kNoPartition) return runtime::kNoPartition;
    }
    if (choice_.launches != runtime::kUntilRevoked) --choice_.launches;
    arbiter_.progressed();
    if (choice_.counts_outstanding) arbiter_.submitted(choice_.partition, id_);
    outstanding_.emplace_back(choice_.partition, choice_.counts_outstanding);
    if (arbiter_.reports()) arbiter_.set_busy(true);
    if (outstanding_.size() > 3) end_one();
    return choice_.partition;
  }
  void end_one() {
    if (outstanding_.empty()) return;
    const auto [partition, counts_outstanding] = outstanding_.front();
    outstanding_.erase(outstanding_.begin());
    if (counts_outstanding) arbiter_.ended(partition, id_, 1);
    if (!arbiter_.reports()) return;
    arbiter_.completed(partition, id_, 1, 1'000);
    arbiter_.busy(1'000);
    if (outstanding_.empty()) arbiter_.set_busy(false);
  }

 private:
  runtime::Arbiter& arbiter_;
  runtime::StreamId id_;
  std::span<const runtime::PartitionId> eligible_;
  runtime::GrantTerms choice_{runtime::kNoPartition, 0};
  std::vector<std::pair<runtime::PartitionId, bool>> outstanding_;  // and whether it counts
};

int work(const std::string& socket, long operations,
         std::unique_ptr<client::RemoteArbiter> remote = nullptr, bool counts = false,
         long each_ns = 0) {
  if (remote == nullptr) remote = arbiter(socket);
  const auto layout = runtime::PoolLayout::build(device(), remote->limits());
  const auto eligible = eligible_partitions(layout);
  std::vector<Lane> lanes;
  for (runtime::StreamId id = 0; id < 4; ++id) lanes.emplace_back(*remote, id, eligible);
  long submitted = 0, whole = 0;
  const auto begin = steady_clock::now();
  auto moved = begin, said = begin;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const bool until_told = operations == 0;
  const char* const asked = std::getenv("MEMBER_MOVES");
  const std::uint64_t moves = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 0;
  const auto stuck = test::time_limit(std::chrono::seconds(20));
  for (long turn = 0; until_told || submitted < operations; ++turn) {
    if (until_told && turn % 1024 == 0 && remote->client().counters().moves >= moves &&
        ::poll(&input, 1, 0) != 0)
      break;
    if (counts && turn % 64 == 0 && steady_clock::now() >= said + std::chrono::milliseconds(10)) {
      said = steady_clock::now();
      std::printf("{\"at\": %.6f, \"submitted\": %ld}\n", seconds_of(said), submitted);
      std::fflush(stdout);
    }
    for (Lane& lane : lanes) {
      if (!until_told && submitted == operations) break;
      const runtime::PartitionId partition = lane.try_submit();
      if (partition == runtime::kNoPartition) {
        lane.end_one();  // what is outstanding ends while we wait
        continue;
      }
      ++submitted;
      whole += partition == runtime::kWholeDevice;
      moved = steady_clock::now();
      while (each_ns > 0 && steady_clock::now() - moved < std::chrono::nanoseconds(each_ns)) {
      }
    }
    if (remote->wants_service()) remote->service();
    if (steady_clock::now() - moved > stuck) {
      std::printf("{\"stuck_after\": %ld}\n", submitted);
      return 4;
    }
  }
  for (Lane& lane : lanes)
    for (int i = 0; i < 4; ++i) lane.end_one();
  remote->service();
  const client::ClientCounters& counters = remote->client().counters();
  std::printf(
      "{\"submitted\": %ld, \"whole\": %ld, \"at_home\": %llu, \"granted\": %llu, \"moves\": %llu, "
      "\"closed\": %llu, \"malformed\": %llu, \"seconds\": %.3f}\n",
      submitted, whole, static_cast<unsigned long long>(counters.in_fallback),
      static_cast<unsigned long long>(counters.granted),
      static_cast<unsigned long long>(counters.moves),
      static_cast<unsigned long long>(counters.closed),
      static_cast<unsigned long long>(counters.malformed),
      std::chrono::duration<double>(steady_clock::now() - begin).count());
  return 0;
}

// A service: when it has nothing to do it says nothing.
int serve(const std::string& socket, bool says_begin) {
  const auto remote = arbiter(socket);
  const auto layout = runtime::PoolLayout::build(device(), remote->limits());
  const auto eligible = eligible_partitions(layout);
  Lane lane(*remote, 0, eligible);
  long requests = 0, operations = 0;
  bool has_work = false, began = false;
  for (pollfd input{STDIN_FILENO, POLLIN, 0};;) {
    if (remote->wants_service()) remote->service();
    if (::poll(&input, 1, 0) != 0) {
      char byte = 0;
      if (::read(STDIN_FILENO, &byte, 1) <= 0) break;
      has_work = !has_work;
      requests += has_work ? 1 : 0;
      began = false;
    }
    if (has_work && lane.try_submit() != runtime::kNoPartition) {
      ++operations;
      if (!std::exchange(began, true) && says_begin) {
        std::printf("{\"began\": %ld}\n", requests);
        std::fflush(stdout);
      }
    } else {
      lane.end_one();  // outstanding operations end while it waits or is idle
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const client::ClientCounters& counters = remote->client().counters();
  std::printf(
      "{\"requests\": %ld, \"operations\": %ld, \"granted\": %llu, \"closed\": %llu, "
      "\"at_home\": %llu}\n",
      requests, operations, static_cast<unsigned long long>(counters.granted),
      static_cast<unsigned long long>(counters.closed),
      static_cast<unsigned long long>(counters.in_fallback));
  return 0;
}

// Requests grants and submits nothing under them.
int delay(const std::string& socket, long requests) {
  using std::chrono::nanoseconds;
  const auto remote = arbiter(socket, std::chrono::milliseconds(100));
  const auto layout = runtime::PoolLayout::build(device(), remote->limits());
  const auto eligible = eligible_partitions(layout);
  std::minstd_rand random;
  std::vector<double> took_us;
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  char byte = 0;
  if (::read(STDIN_FILENO, &byte, 1) <= 0) return 1;
  for (long request = 0; request < requests; ++request) {
    // Random pauses, so that requests do not synchronise with the daemon.
    std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 1000));
    if (remote->wants_service()) remote->service();
    const auto begin = steady_clock::now();
    while (remote->grant({}, eligible).partition == runtime::kNoPartition)
      if (remote->wants_service()) remote->service();
    took_us.push_back(
        std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count());
  }
  // A longer answer is a wait for CPU time.
  double sum = 0, count = 0;
  for (const double each : took_us)
    if (each < 5'000) sum += each, ++count;
  std::sort(took_us.begin(), took_us.end());
  const auto share = [&](double at) {
    return took_us[std::min(took_us.size() - 1,
                            static_cast<std::size_t>(at * static_cast<double>(took_us.size())))];
  };
  std::printf(
      "{\"requests\": %ld, \"mean_us\": %.3f, \"p50_us\": %.3f, \"p90_us\": %.3f, "
      "\"p99_us\": %.3f, \"most_us\": %.3f}\n",
      requests, sum / count, share(0.5), share(0.9), share(0.99), share(1));
  return 0;
}

// A lease with an operation that does not end.
struct Held {
  explicit Held(const std::string& socket)
      : remote(arbiter(socket)),
        layout(runtime::PoolLayout::build(device(), remote->limits())),
        eligible(eligible_partitions(layout)),
        lane(*remote, 0, eligible) {
    runtime::PartitionId partition = runtime::kNoPartition;
    while ((partition = lane.try_submit()) == runtime::kNoPartition)
      if (remote->wants_service()) remote->service();
    std::printf("{\"entry\": %u, \"process\": %d}\n", partition, static_cast<int>(::getpid()));
    std::fflush(stdout);
  }
  std::unique_ptr<client::RemoteArbiter> remote;
  runtime::PoolLayout layout;
  std::vector<runtime::PartitionId> eligible;
  Lane lane;
};

int hold(const std::string& socket, long mebibytes) {
  const std::vector<char> ballast(static_cast<std::size_t>(mebibytes) << 20, 1);
  Held held(socket);
  for (;;) {  // as the mover does
    if (held.remote->wants_service()) held.remote->service();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int away(const std::string& socket) {
  Held held(socket);
  char byte = 0;
  if (::read(STDIN_FILENO, &byte, 1) <= 0) return 1;
  Lane other(*held.remote, 2, held.eligible);  // fits the fallback partition
  while (other.try_submit() == runtime::kNoPartition)
    if (held.remote->wants_service()) held.remote->service();
  std::printf("{\"at_home\": %d}\n", held.remote->client().in_fallback() ? 1 : 0);
  std::fflush(stdout);
  for (;;) {
    if (held.remote->wants_service()) held.remote->service();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void wait_for_input() {
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

int first_thread_ends(const std::string& socket, long operations) {
  auto remote = arbiter(socket);
  std::thread([&socket, operations, remote = std::move(remote)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the first thread has ended
    const int code = work(socket, operations, std::move(remote));
    std::fflush(stdout);
    ::_exit(code);
  }).detach();
  ::syscall(SYS_exit,
            0);  // ends this thread; pthread_exit() needs a library that may be missing
  return 1;
}

int exec_with_lease(const std::string& socket) {
  Held held(socket);
  wait_for_input();
  ::execlp("sleep", "sleep", "60", nullptr);
  return 1;
}

int fork_with_lease(const std::string& socket) {
  Held held(socket);
  if (::fork() == 0) {
    // A forked child is not this client: no grant admits, and it gets the whole device, where it
    // would have run natively.
    runtime::ReadyOperation operation;
    const bool admitted = held.remote->admits(1, 0);
    const runtime::GrantTerms terms = held.remote->grant(operation, held.eligible);
    std::printf("{\"admitted\": %d, \"entry\": %u, \"process\": %d}\n", admitted, terms.partition,
                static_cast<int>(::getpid()));
    std::fflush(stdout);
    ::sleep(60);
    ::_exit(0);
  }
  wait_for_input();
  return 0;
}

int latency(const std::string& socket) {
  const auto remote = arbiter(socket);
  const auto layout = runtime::PoolLayout::build(device(), remote->limits());
  const auto eligible = eligible_partitions(layout);
  Lane lane(*remote, 0, eligible);
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (!remote->client().in_fallback() || ::poll(&input, 1, 0) == 0) {
    lane.try_submit();
    if (remote->wants_service()) remote->service();
    if (remote->client().in_fallback()) break;
  }
  std::printf("{\"home_at\": %.6f}\n", seconds_of(steady_clock::now()));
  return 0;
}

[[noreturn]] void homes(const std::string& socket) {
  const auto remote = arbiter(socket);
  const auto layout = runtime::PoolLayout::build(device(), remote->limits());
  const auto eligible = eligible_partitions(layout);
  Lane lane(*remote, 0, eligible);
  for (bool home = false;;) {
    lane.try_submit();
    if (remote->wants_service()) remote->service();
    if (std::exchange(home, remote->client().in_fallback()) == home) continue;
    std::printf("{\"%s\": %.6f}\n", home ? "home_at" : "back_at", seconds_of(steady_clock::now()));
    std::fflush(stdout);
  }
}

// Calls `ring` from time to time.
template <class F>
void scribble_over(unsigned char* bytes, std::size_t size, long milliseconds, F ring) {
  std::mt19937_64 random(7);
  const auto until = steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (steady_clock::now() < until)
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t value = random();
      std::memcpy(bytes + random() % (size - 8), &value, 8);
      if (i % 100 == 0) ring();
    }
}

int scribble(const std::string& socket, long milliseconds) {
  auto connection = client::connect(socket, device(), "scribble", {}, kAnswerTimeout);
  if (!connection) return 3;
  scribble_over(reinterpret_cast<unsigned char*>((*connection)->memory.client.get()),
                sizeof(protocol::ClientSegment), milliseconds,
                [&] { protocol::ring_doorbell((*connection)->socket); });
  return 0;
}

int hog(long milliseconds) {
  std::vector<unsigned char> memory(sizeof(protocol::ClientSegment));
  const protocol::Fd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  scribble_over(memory.data(), memory.size(), milliseconds,
                [&] { (void)!::write(nowhere.get(), "", 1); });
  return 0;
}

int greet(const std::string& socket, long many) {
  std::vector<protocol::Fd> open;
  long refused = 0;
  for (long i = 0; i < many; ++i) {
    auto made = protocol::connect_to(socket);
    if (!made) {
      ++refused;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else if (open.size() < 500) {
      open.push_back(std::move(*made));
    } else {
      open[static_cast<std::size_t>(i) % open.size()] = std::move(*made);
    }
  }
  std::printf("{\"not_accepted\": %ld}\n", refused);
  return 0;
}

int skew(const std::string& socket) {
  const auto connection = protocol::connect_to(socket);
  if (!connection) return 3;
  protocol::Hello hello = protocol::hello_of(device(), "skew");
  hello.preamble.major = protocol::kMajor + 1;
  if (!protocol::send_message(*connection, protocol::bytes_of(hello))) return 3;
  const auto parcel = protocol::receive_parcel(*connection, 4096, kAnswerTimeout);
  if (!parcel) return 3;
  const auto answer = protocol::parse<protocol::Welcome>(parcel->bytes);
  std::printf("{\"refused\": \"%s\"}\n", answer ? "" : answer.error().message.c_str());
  return 0;
}

int run(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends with its test
  const std::string socket = argc > 1 ? argv[1] : "", verb = argc > 2 ? argv[2] : "";
  const long number = argc > 3 ? std::strtol(argv[3], nullptr, 10) : 0;
  if (verb == "work") return work(socket, number);
  if (verb == "delay") return delay(socket, std::max(1L, number));
  if (verb == "serve") return serve(socket, number == 1);
  if (verb == "count") return work(socket, 0, nullptr, true, number);
  if (verb == "away") return away(socket);
  if (verb == "hold") return hold(socket, number);
  if (verb == "hog") return hog(number);
  if (verb == "latency") return latency(socket);
  if (verb == "homes") homes(socket);
  if (verb == "scribble") return scribble(socket, number);
  if (verb == "greet") return greet(socket, number);
  if (verb == "skew") return skew(socket);
  if (verb == "first") return first_thread_ends(socket, number);
  if (verb == "exec") return exec_with_lease(socket);
  if (verb == "fork") return fork_with_lease(socket);
  std::fprintf(stderr,
               "usage: member SOCKET "
               "work|count|serve|delay|hold|latency|scribble|hog|greet|skew|first|exec|fork [N]\n");
  return 2;
}

}  // namespace
}  // namespace vitamin

int main(int argc, char** argv) { return vitamin::run(argc, argv); }
