// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/machine.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <string_view>

namespace vitamin::soft::amdgpu {
namespace {

// Processes share a ledger for each GPU.
std::string ledger_of(const Settings& settings, unsigned number) {
  if (settings.ledger.empty() || number == 0) return settings.ledger;
  return settings.ledger + "." + std::to_string(number);
}

}  // namespace

Gpu::Gpu(unsigned its_number, const Settings& settings)
    : number(its_number),
      occupancy(ledger_of(settings, its_number), settings.part->cus()),
      hardware_queues(settings.part->hardware_queues) {}

Machine::Machine(Settings from_environment)
    : settings(std::move(from_environment)),
      part(*settings.part),
      cus(mask_order(part)),
      code(part.processor, part.preserves_halves,
           [this](std::uint64_t address) {
             const auto found = memory.find(address);
             return found ? isa::CodeCache::Extent{found->begin, found->bytes}
                          : isa::CodeCache::Extent{};
           }),
      trace(settings.trace) {
  for (unsigned number = 0; number < settings.gpus; ++number)
    gpus.push_back(std::make_unique<Gpu>(number, settings));
}

bool Machine::fails(FaultPoint point) {
  const auto index = static_cast<std::size_t>(point);
  const std::uint64_t call = calls_[index].fetch_add(1) + 1;
  for (const ScriptedFault& fault : settings.faults)
    if (fault.point == point && call >= fault.first && call <= fault.last) return true;
  return false;
}

void Machine::lose(Gpu& gpu, const char* why) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (gpu.lost) return;
  // Before any thread sees it: the runtime ends the program then.
  std::fprintf(stderr, "software AMD GPU: the device is lost: %s\n", why);
  trace.line("lost gpu=%u reason=%s", gpu.number, why);
  gpu.lost = true;
}

// Leaked on purpose. What must be said at the end is said from a destructor function, which runs
// while the runtime's threads still wait on the devices.
Machine& machine() {
  static Machine* const instance = new Machine(read_settings());
  return *instance;
}

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

namespace {
// The process that opened the device; 0: none yet. A child of a fork is another one.
std::atomic<pid_t> opened_by{0};
}  // namespace

void note_opened(Machine& machine) {
  pid_t none = 0;
  if (opened_by.compare_exchange_strong(none, ::getpid()))
    machine.trace.line("open part=%s cus=%u gpus=%zu", machine.part.name, machine.part.cus(),
                       machine.gpus.size());
}

namespace {

void say_that_it_was_not_opened() {
  const char* const log = std::getenv("VITAMIN_SOFT_AMDGPU_LOG");
  if (log == nullptr || std::string_view(log) != "1") return;
  std::fprintf(stderr, "software AMD GPU: %s (process %d) did not open /dev/kfd: it uses no HIP\n",
               program_invocation_short_name, ::getpid());
}

__attribute__((destructor)) void summarise() {
  const pid_t opener = opened_by.load();
  if (opener == 0) return say_that_it_was_not_opened();
  if (opener != ::getpid()) return;
  for (const auto& gpu : machine().gpus)
    machine().trace.line(
        "summary gpu=%u dispatches=%llu instructions=%llu queues=%llu masks=%llu preemptions=%llu "
        "shared_cus=%u hardware_queues=%u most_mapped=%u turns=%llu",
        gpu->number, static_cast<unsigned long long>(gpu->dispatches.load()),
        static_cast<unsigned long long>(gpu->instructions.load()),
        static_cast<unsigned long long>(gpu->queues.load()),
        static_cast<unsigned long long>(gpu->masks.load()),
        static_cast<unsigned long long>(gpu->preemptions.load()), gpu->occupancy.shared_cus(),
        gpu->hardware_queues.count(), gpu->hardware_queues.most_mapped(),
        static_cast<unsigned long long>(gpu->turns.load()));
}

}  // namespace
}  // namespace vitamin::soft::amdgpu
