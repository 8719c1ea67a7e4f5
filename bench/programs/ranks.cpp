// SPDX-License-Identifier: Apache-2.0
//
// What bench/daemon/ranks.py does, by the driver's interface alone, on a GPU and on the software
// device alike: one rank of a job, with the same options and the same lines of output.
//
//   ranks KIND --rank R --world W --store FILE --gpu I --steps N [--timed M] [--seed S]
//         [--late SECONDS] [--go DIRECTORY] [--blocks 1]
//   ranks gpus     the UUIDs of the GPUs that this process sees
//
// Collectives go through memory of the host that the ranks share (all_gather): a rank's kernel
// waits on its GPU for the kernels of all others, as NCCL's do. A kind says how many of them a step
// has and where.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cinttypes>
#include <fstream>
#include <map>
#include <stdexcept>
#include <thread>

#include "driver.h"
#include "hal/file_memory.h"
#include "hal/fnv1a.h"

namespace {

struct Kind {
  const char* name;
  unsigned before_layer, behind_layer, behind_step;  // collectives
  bool own_order;                                    // each rank adds up from itself on
};
constexpr Kind kKinds[] = {{"ddp", 0, 0, 1, false},
                           {"fsdp", 1, 1, 0, false},
                           {"tensor", 0, 1, 0, false},
                           {"exchange", 0, 2, 0, true}};
constexpr unsigned kLayers = 3, kBlocks = 4, kThreads = 128;
constexpr std::uint32_t kWeights = 4096;

class Options {
 public:
  Options(int count, char** words) {
    if (count < 2 || count % 2 != 0) bench::Driver::stop("ranks: KIND, then pairs of --NAME VALUE");
    kind = words[1];
    for (int i = 2; i < count; i += 2) given_[words[i]] = words[i + 1];
  }
  std::string text(const std::string& name, const std::string& otherwise) const {
    const auto found = given_.find("--" + name);
    return found == given_.end() ? otherwise : found->second;
  }
  std::uint32_t number(const std::string& name, std::uint32_t otherwise) const {
    const std::string value = text(name, std::to_string(otherwise));
    try {
      return static_cast<std::uint32_t>(std::stoul(value));
    } catch (const std::exception&) {
      bench::Driver::stop("ranks: --" + name + " " + value + " is not a number");
    }
  }
  std::string kind;

 private:
  std::map<std::string, std::string> given_;
};

const Kind& kind_named(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (name == kind.name) return kind;
  bench::Driver::stop("ranks: there is no kind '" + name + "': ddp, fsdp, tensor, exchange");
}

double seconds() { return 1e-9 * static_cast<double>(bench::now_ns()); }

std::string text_of(const CUuuid& uuid) {
  std::string text;
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits.data();
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

std::string uuid_of(const bench::Driver& cu, int gpu) {
  CUuuid uuid{};
  CUdevice device = 0;
  BENCH_MUST(cu.cuDeviceGet(&device, gpu));
  BENCH_MUST(cu.find<decltype(&::cuDeviceGetUuid_v2)>("cuDeviceGetUuid_v2")(&uuid, device));
  return text_of(uuid);
}

void list_gpus() {
  const bench::Driver cu;
  int count = 0;
  BENCH_MUST(cu.cuInit(0));
  BENCH_MUST(cu.find<decltype(&::cuDeviceGetCount)>("cuDeviceGetCount")(&count));
  for (int i = 0; i < count; ++i) std::printf("%s\n", uuid_of(cu, i).c_str());
}

// The memory that the ranks of a job share, a file.
class Board {
 public:
  Board(const std::string& file, std::uint32_t world) : world_(world) {
    const int made = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (made < 0 || !vitamin::hal::set_file_size(made, bytes()))
      bench::Driver::stop("ranks: --store " + file + " cannot be written");
    words_ =
        static_cast<std::uint32_t*>(vitamin::hal::map_file(made, bytes(), PROT_READ | PROT_WRITE));
    ::close(made);
    if (words_ == nullptr || !vitamin::hal::make_room(words_, bytes()))
      bench::Driver::stop("ranks: --store " + file + " cannot be mapped");
  }

  void* memory() const { return words_; }
  std::size_t bytes() const {
    return (kHead + world_ * kBlocks + 2 * std::size_t{world_} * kWeights) * sizeof(std::uint32_t);
  }
  std::uint32_t* rounds() const { return words_ + kHead; }
  float* halves() const { return reinterpret_cast<float*>(rounds() + world_ * kBlocks); }

  // Waits until every rank is here.
  void join() const {
    const std::atomic_ref<std::uint32_t> joined(*words_);
    joined.fetch_add(1);
    while (joined.load() < world_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  static constexpr std::size_t kHead = 16;
  std::uint32_t world_;
  std::uint32_t* words_ = nullptr;
};

class Rank {
 public:
  Rank(const Options& options, const Board& board)
      : kind_(kind_named(options.kind)),
        board_(board),
        rank_(options.number("rank", 0)),
        world_(options.number("world", 1)),
        d_(static_cast<int>(options.number("gpu", 0))) {
    BENCH_MUST(d_.cu.find<decltype(&::cuMemHostRegister_v2)>("cuMemHostRegister_v2")(
        board_.memory(), board_.bytes(), CU_MEMHOSTREGISTER_DEVICEMAP));
    float* const values = d_.pinned<float>(kWeights);
    std::uint32_t state = 2654435761u * (1000 * options.number("seed", 1) + rank_ + 1);
    for (std::uint32_t i = 0; i < kWeights; ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = static_cast<float>(state >> 8) * 0x1p-24f;
    }
    BENCH_MUST(d_.cu.find<decltype(&::cuMemcpyHtoD_v2)>("cuMemcpyHtoD_v2")(
        weights_, values, kWeights * sizeof(float)));
  }

  void step() {
    for (unsigned layer = 0; layer < kLayers; ++layer) {
      for (unsigned i = 0; i < kind_.before_layer; ++i) collect();
      BENCH_MUST(d_.launch(layer_, stream_, kWeights / kThreads, kThreads, weights_, moved_,
                           kWeights, 0.1f + 0.05f * static_cast<float>(layer)));
      std::swap(weights_, moved_);
      for (unsigned i = 0; i < kind_.behind_layer; ++i) average();
    }
    for (unsigned i = 0; i < kind_.behind_step; ++i) average();
  }

  // Ends of steps, of which at most two are queued.
  std::vector<double> timed(std::uint32_t steps) {
    std::vector<double> ends;
    for (std::uint32_t i = 0; i < steps; ++i) {
      step();
      BENCH_MUST(d_.cu.cuEventRecord(events_[i % 2], stream_));
      if (i == 0) continue;
      BENCH_MUST(d_.cu.cuEventSynchronize(events_[(i - 1) % 2]));
      ends.push_back(seconds());
    }
    return ends;
  }

  void synchronize() { BENCH_MUST(d_.cu.cuStreamSynchronize(stream_)); }

  std::uint64_t hash() {
    synchronize();
    const std::vector<std::uint32_t> words = d_.read(weights_, kWeights);
    return vitamin::hal::fnv1a(
        {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]});
  }

 private:
  void collect() {
    BENCH_MUST(d_.launch(gather_, stream_, kBlocks, kThreads, weights_, all_, kWeights,
                         board_.halves(), board_.rounds(), rank_, world_, ++round_));
  }
  void average() {
    collect();
    BENCH_MUST(d_.launch(mean_, stream_, kWeights / kThreads, kThreads, all_, weights_, kWeights,
                         world_, kind_.own_order ? rank_ : 0u));
  }

  const Kind& kind_;
  const Board& board_;
  std::uint32_t rank_, world_, round_ = 0;
  bench::Device d_;
  CUstream stream_ = d_.stream();
  CUfunction gather_ = d_.kernel("all_gather"), layer_ = d_.kernel("rank_layer"),
             mean_ = d_.kernel("rank_mean");
  CUdeviceptr weights_ = d_.words(kWeights), moved_ = d_.words(kWeights),
              all_ = d_.words(std::size_t{kWeights} * world_);
  std::array<CUevent, 2> events_{d_.event(), d_.event()};
};

// Each line in one write: a reader never sees half of one.
template <class... Values>
void tell(const char* format, Values... values) {
  std::printf(format, values...);
  std::fflush(stdout);
}

void tell_hash(Rank& rank, const std::string& name) {
  const std::uint64_t hash = rank.hash();
  tell("{\"name\": \"%s\", \"hash\": \"%016" PRIx64 "\", \"at\": %.6f}\n", name.c_str(), hash,
       seconds());
}

std::string ends_of(Rank& rank, std::uint32_t steps) {
  std::string ends;
  for (const double end : rank.timed(steps))
    ends += (ends.empty() ? "" : ", ") + std::to_string(end);
  return ends;
}

void await(const std::string& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

// Block I: as many steps as the file PREFIX.I says, timed; 0 ends it.
void blocks(Rank& rank, const std::string& prefix, const std::string& seed) {
  for (unsigned i = 0;; ++i) {
    const std::string asked = prefix + "." + std::to_string(i);
    await(asked);
    std::uint32_t steps = 0;
    std::ifstream(asked) >> steps;
    if (steps == 0) return;
    tell("{\"seed\": %s, \"block\": %u, \"ends\": [%s]}\n", seed.c_str(), i,
         ends_of(rank, steps).c_str());
    rank.synchronize();
  }
}

void run(const Options& options) {
  const Board board(options.text("store", "ranks.store"), options.number("world", 1));
  Rank rank(options, board);
  tell("{\"gpu\": \"%s\"}\n",
       uuid_of(bench::Driver(), static_cast<int>(options.number("gpu", 0))).c_str());
  std::this_thread::sleep_for(std::chrono::seconds(options.number("late", 0)));
  board.join();
  rank.step();
  rank.synchronize();
  const std::string seed = options.text("seed", "1");
  tell("{\"seed\": %s, \"process\": %d, \"ready\": %.6f}\n", seed.c_str(), ::getpid(), seconds());
  const std::string go = options.text("go", "");
  if (!go.empty()) await(go + "/" + seed);
  tell_hash(rank, "before");
  for (std::uint32_t i = 0; i < options.number("steps", 8); ++i) {
    rank.step();
    tell_hash(rank, "step " + std::to_string(i));
  }
  if (const std::uint32_t timed = options.number("timed", 0); timed != 0) {
    tell("{\"seed\": %s, \"ends\": [%s]}\n", seed.c_str(), ends_of(rank, timed).c_str());
    rank.step();
    tell_hash(rank, "after " + std::to_string(timed) + " more");
  }
  if (options.number("blocks", 0) != 0) blocks(rank, go + "/" + seed, seed);
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "gpus")
    list_gpus();
  else
    run(Options(count, words));
}
