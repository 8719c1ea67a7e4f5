// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/kfd/sysfs.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <utility>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"
#include "backends/soft/hash.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

constexpr std::string_view kTopology = "devices/virtual/kfd/kfd/topology";
constexpr std::string_view kModule = "module/amdgpu";
constexpr std::string_view kDri = "dev/dri";
constexpr std::uint64_t kFirstGpuProcessor = 0x80000000, kProcessorsOfGpu = 0x1000;
constexpr std::uint64_t kLocation = 0x300, kNextLocation = 0x100;  // PCI bus in the upper byte

// Of linux/kfd_sysfs.h, whose names collide with the thunk's header.
constexpr std::uint64_t kQueueSizePowerOfTwo = 0x8, kDoorbell64 = 0x2000, kMemoryEcc = 1 << 26,
                        kSharedVirtualMemory = 1 << 27;  // capabilities
constexpr std::uint64_t kHeapSystem = 0, kHeapVideo = 1;
constexpr std::uint64_t kCacheData = 0x1, kCacheOfCus = 0x8;
constexpr std::uint64_t kLinkPciExpress = 2, kLinkXgmi = 11, kLinkEnabled = 1;
constexpr std::uint64_t kWeightOfXgmiHop = 15;
constexpr std::uint64_t kHive = 0x6d19f0b5a2c4e377;  // any number but 0, which all GPUs of it have

using Properties = std::initializer_list<std::pair<const char*, std::uint64_t>>;

std::string lines(Properties properties) {
  std::string text;
  for (const auto& [name, value] : properties)
    text += std::string(name) + " " + std::to_string(value) + "\n";
  return text;
}

std::string node_path(unsigned node, const std::string& rest) {
  return std::string(kTopology) + "/nodes/" + std::to_string(node) + "/" + rest;
}

std::string cpu_properties(unsigned links) {
  return lines({{"cpu_cores_count", static_cast<std::uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN))},
                {"simd_count", 0},
                {"mem_banks_count", 1},
                {"caches_count", 0},
                {"io_links_count", links},
                {"p2p_links_count", 0},
                {"cpu_core_id_base", 0},
                {"simd_id_base", 0},
                {"max_waves_per_simd", 0},
                {"lds_size_in_kb", 0},
                {"gds_size_in_kb", 0},
                {"num_gws", 0},
                {"wave_front_size", 0},
                {"array_count", 0},
                {"simd_arrays_per_engine", 0},
                {"cu_per_simd_array", 0},
                {"simd_per_cu", 0},
                {"max_slots_scratch_cu", 0},
                {"gfx_target_version", 0},
                {"vendor_id", 0},
                {"device_id", 0},
                {"location_id", 0},
                {"domain", 0},
                {"drm_render_minor", 0},
                {"hive_id", 0},
                {"num_sdma_engines", 0},
                {"num_sdma_xgmi_engines", 0},
                {"num_sdma_queues_per_engine", 0},
                {"num_cp_queues", 0},
                {"max_engine_clk_ccompute", 2000}});
}

// Whether the GPUs are one hive: linked by XGMI, as the two of an MI250 and the eight of a board
// with MI300X are.
bool is_hive(const Settings& settings) {
  return settings.gpus >= 2 && settings.part->xgmi_copy_engines != 0;
}

std::string gpu_properties(const Settings& settings, unsigned gpu, unsigned links) {
  const Part& part = *settings.part;
  return lines({{"cpu_cores_count", 0},
                {"simd_count", part.cus() * part.simds_per_cu()},
                {"mem_banks_count", 1},
                {"caches_count", 2},
                {"io_links_count", links},
                {"p2p_links_count", 0},
                {"cpu_core_id_base", 0},
                {"simd_id_base", kFirstGpuProcessor + gpu * kProcessorsOfGpu},
                {"max_waves_per_simd", 8},
                {"lds_size_in_kb", 64},
                {"gds_size_in_kb", 0},
                {"num_gws", 64},
                {"wave_front_size", part.wave_width},
                {"array_count", part.xccs * part.engines * part.arrays_per_engine},
                {"simd_arrays_per_engine", part.arrays_per_engine},
                {"cu_per_simd_array", part.cus_per_array},
                {"simd_per_cu", part.simds_per_cu()},
                {"max_slots_scratch_cu", 32},
                {"gfx_target_version", part.major * 10000 + part.minor * 100 + part.stepping},
                {"vendor_id", 0x1002},
                {"device_id", part.device_id},
                {"location_id", kLocation + gpu * kNextLocation},
                {"domain", 0},
                {"drm_render_minor", kFirstMinor + gpu},
                {"hive_id", is_hive(settings) ? kHive : 0},
                {"num_sdma_engines", kCopyEngines},
                {"num_sdma_xgmi_engines", part.xgmi_copy_engines},
                {"num_sdma_queues_per_engine", kQueuesPerCopyEngine},
                {"num_cp_queues", part.hardware_queues},
                {"max_engine_clk_fcompute", 1700},
                {"local_mem_size", 0},  // always, since the banks tell it
                {"fw_version", 60},
                {"capability", kQueueSizePowerOfTwo | kDoorbell64 | kSharedVirtualMemory |
                                   (part.preserves_halves ? 0 : kMemoryEcc)},
                {"debug_prop", 0},
                {"sdma_fw_version", 8},
                {"unique_id", 0x50f7 + gpu},
                {"num_xcc", part.xccs},
                {"max_engine_clk_ccompute", 2000}});
}

std::string bank(std::uint64_t heap, std::uint64_t bytes) {
  return lines({{"heap_type", heap},
                {"size_in_bytes", bytes},
                {"flags", 0},
                {"width", 4096},
                {"mem_clk_max", 1600}});
}

std::string cache(unsigned gpu, unsigned level, unsigned kilobytes) {
  return lines({{"processor_id_low", kFirstGpuProcessor + gpu * kProcessorsOfGpu},
                {"level", level},
                {"size", kilobytes},
                {"cache_line_size", 64},
                {"cache_lines_per_tag", 1},
                {"association", 16},
                {"latency", 0},
                {"type", kCacheData | kCacheOfCus},
                {"sibling_map", 1}});
}

// Types and weights: kfd_crat.c, kfd_create_vcrat_image_gpu and kfd_parse_subtype_iolink.
std::string link(unsigned from, unsigned to, bool hive) {
  const bool between_gpus = from != 0 && to != 0, xgmi = between_gpus && hive;
  return lines({{"type", xgmi ? kLinkXgmi : kLinkPciExpress},
                {"version_major", 0},
                {"version_minor", 0},
                {"node_from", from},
                {"node_to", to},
                {"weight", xgmi           ? kWeightOfXgmiHop
                           : between_gpus ? 40
                                          : 20},
                {"min_latency", 0},
                {"max_latency", 0},
                {"min_bandwidth", 0},
                {"max_bandwidth", 0},
                {"recommended_transfer_size", 0},
                {"flags", kLinkEnabled}});
}

void add_links(std::vector<SysfsFile>& files, const Settings& settings, unsigned node) {
  unsigned number = 0;
  for (unsigned to = 0; to <= settings.gpus; ++to)
    if (to != node)
      files.push_back({node_path(node, "io_links/" + std::to_string(number++) + "/properties"),
                       link(node, to, is_hive(settings))});
}

namespace fs = std::filesystem;

void write(const fs::path& root, const std::vector<SysfsFile>& files) {
  for (const SysfsFile& file : files) {
    fs::create_directories((root / file.path).parent_path());
    std::ofstream(root / file.path) << file.text;
  }
}

bool is_our_directory(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 022) == 0;
}

// Written beside its name and renamed, so that a process finds all of it or nothing.
fs::path make_tree() {
  const std::vector<SysfsFile> files = sysfs_files(read_settings());
  std::uint64_t hash = 0;
  for (const SysfsFile& file : files) {
    hash = hash_bytes(file.path.data(), file.path.size(), hash);
    hash = hash_bytes(file.text.data(), file.text.size(), hash);
  }
  char name[64];
  std::snprintf(name, sizeof name, "vitamin-kfd-%u-%016llx", ::geteuid(),
                static_cast<unsigned long long>(hash));
  const fs::path root = fs::temp_directory_path() / name;
  if (is_our_directory(root)) return root;
  std::string beside = root.string() + ".XXXXXX";
  if (::mkdtemp(beside.data()) == nullptr) {
    std::perror("software AMD GPU: mkdtemp");
    std::abort();
  }
  write(beside, files);
  std::error_code error;
  fs::rename(beside, root, error);
  if (!error) return root;
  if (!is_our_directory(root)) return beside;  // another user's
  fs::remove_all(beside, error);               // another process was faster
  return root;
}

const fs::path& tree() {
  static const auto* const root = new fs::path(make_tree());
  return *root;
}

bool is_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

}  // namespace

std::vector<SysfsFile> sysfs_files(const Settings& settings) {
  const unsigned links = settings.gpus;
  const std::string topology(kTopology);
  std::vector<SysfsFile> files = {
      {topology + "/generation_id", "1\n"},
      {topology + "/system_properties",
       lines({{"platform_oem", 0}, {"platform_id", 0}, {"platform_rev", 0}})},
      {std::string(kModule) + "/initstate", "live\n"},
      {node_path(0, "gpu_id"), "0\n"},
      {node_path(0, "name"), "\n"},
      {node_path(0, "properties"), cpu_properties(links)},
      {node_path(0, "mem_banks/0/properties"), bank(kHeapSystem, kSystemBytes)},
  };
  add_links(files, settings, 0);
  for (unsigned gpu = 0; gpu < settings.gpus; ++gpu) {
    const unsigned node = 1 + gpu;
    files.push_back({node_path(node, "gpu_id"), std::to_string(gpu_id(gpu)) + "\n"});
    files.push_back({node_path(node, "name"), std::string(settings.part->family) + "\n"});
    files.push_back({node_path(node, "properties"), gpu_properties(settings, gpu, links)});
    files.push_back({node_path(node, "mem_banks/0/properties"), bank(kHeapVideo, kVideoBytes)});
    files.push_back({node_path(node, "caches/0/properties"), cache(gpu, 1, 16)});
    files.push_back({node_path(node, "caches/1/properties"), cache(gpu, 2, 8192)});
    add_links(files, settings, node);
    files.push_back({std::string(kDri) + "/renderD" + std::to_string(kFirstMinor + gpu), ""});
  }
  return files;
}

std::string redirected(std::string_view path) {
  constexpr std::string_view kSys = "/sys/", kClass = "class/kfd/kfd/topology";
  // The system call, because access() is ours.
  static const bool has_dri = ::syscall(SYS_access, "/dev/dri", F_OK) == 0;
  if (!has_dri && path.starts_with('/') && is_below(path.substr(1), kDri))
    return tree() / path.substr(1);
  if (!path.starts_with(kSys)) return std::string(path);
  const std::string_view rest = path.substr(kSys.size());
  if (is_below(rest, kTopology) || is_below(rest, kModule)) return tree() / rest;
  if (is_below(rest, kClass))
    return tree() / (std::string(kTopology) + std::string(rest.substr(kClass.size())));
  return std::string(path);
}

}  // namespace vitamin::soft::amdgpu::kfd
