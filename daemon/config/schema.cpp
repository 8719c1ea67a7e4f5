// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/schema.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace vitamin::config {

using nlohmann::ordered_json;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMillisecond;
constexpr std::int64_t kDay = 86'400 * kSecond;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

// A key of a Target; kField(target) is the member that it sets.
template <class Target, auto kField>
Key<Target> key(SettingType type, const char* path, const char* meaning) {
  using Member = std::remove_reference_t<decltype(kField(std::declval<Target&>()))>;
  Key<Target> made;
  made.path = path;
  made.type = type;
  made.meaning = meaning;
  made.write = [](Target& target, const Value& value) {
    if constexpr (std::is_integral_v<Member> && !std::is_same_v<Member, bool>)
      kField(target) = static_cast<Member>(std::get<std::int64_t>(value));
    else if constexpr (std::is_enum_v<Member>)
      kField(target) = static_cast<Member>(std::get<std::int64_t>(value));
    else
      kField(target) = std::get<Member>(value);
  };
  made.read = [](const Target& target) -> Value {
    if constexpr (std::is_same_v<Member, bool>)
      return kField(target);
    else if constexpr (std::is_integral_v<Member> || std::is_enum_v<Member>)
      return static_cast<std::int64_t>(kField(target));
    else
      return kField(target);
  };
  return made;
}

template <class Target>
Key<Target> within(std::int64_t low, std::int64_t high, Key<Target> key) {
  key.low = low;
  key.high = high;
  return key;
}
template <class Target>
Key<Target> one_of(const std::vector<std::string>& choices, Key<Target> key) {
  key.choices = choices;
  return key;
}
SettingKey of_device(SettingKey key) {
  key.of_device = true;
  return key;
}

// Lambdas that name a member for reading and for writing.
#define VITAMIN_SETTING(type, member, path, meaning)             \
  key < Configuration, [](auto& c) -> auto& { return c.member; } \
  > (SettingType::type, path, meaning)
#define VITAMIN_CLASS(type, member, meaning)                     \
  key < WorkloadClass, [](auto& c) -> auto& { return c.member; } \
  > (SettingType::type, #member, meaning)
#define VITAMIN_BOUND(member, name, meaning)                                                   \
  within(0, 3600 * kSecond,                                                                    \
         key<WorkloadClass, [](auto& c) -> auto& { return c.member; }>(SettingType::kDuration, \
                                                                       name, meaning))

std::vector<SettingKey> daemon_keys() {
  return {
      VITAMIN_SETTING(kText, daemon.lock_directory, "daemon.lock_directory",
                      "directory of the device locks; the same one for all users"),
      within(kMillisecond, 3600 * kSecond,
             VITAMIN_SETTING(kDuration, daemon.answer_within_ns, "daemon.answer_within",
                             "a client that does not answer a closed gate within this time is "
                             "overdue")),
      within(0, kSecond,
             VITAMIN_SETTING(kDuration, daemon.spin_ns, "daemon.spin",
                             "poll for work this long before sleeping; 20 ms while a client "
                             "waits")),
      within(0, kDay,
             VITAMIN_SETTING(kDuration, daemon.exit_when_idle_ns, "daemon.exit_when_idle",
                             "exit after this time without a client; 0: never")),
      within(1, 65'536,
             VITAMIN_SETTING(kInteger, daemon.clients, "daemon.clients", "clients at once")),
      within(1, 65'536,
             VITAMIN_SETTING(kInteger, daemon.clients_of_user, "daemon.clients_of_user",
                             "clients of one user at once")),
      within(0, kDay,
             VITAMIN_SETTING(kDuration, daemon.quarantine_ns, "daemon.quarantine",
                             "a process that broke the protocol is refused for this long")),
      VITAMIN_SETTING(kBoolean, daemon.pin, "daemon.pin",
                      "pin vitamind to CPUs of the NUMA node that most GPUs are attached to"),
  };
}

std::vector<SettingKey> device_keys() {
  return {
      of_device(within(1, 64,
                       VITAMIN_SETTING(kInteger, pool.leaf_units, "pool.leaf_units",
                                       "units of the smallest partition of a device"))),
      of_device(within(1, runtime::kPartitionsMax - 1,
                       VITAMIN_SETTING(kInteger, pool.partitions_max, "pool.entries_max",
                                       "most partitions of a device; each costs GPU memory"))),
      of_device(VITAMIN_SETTING(kBoolean, pool.all_runs, "pool.all_runs",
                                "a partition for every run of neighbouring units, not only for "
                                "those of the binary tree")),
      of_device(VITAMIN_SETTING(kText, policy.name, "policy.name",
                                "policy that allocates SMs: one of `vitamin policy list`, or the "
                                "path of a shared object")),
      of_device(VITAMIN_SETTING(kTable, policy.parameters, "policy.parameters",
                                "parameters of the policy: see `vitamin policy show NAME`")),
      of_device(
          within(0, kAny,
                 VITAMIN_SETTING(kInteger, policy.seed, "policy.seed", "seed of a random policy"))),
      of_device(within(10'000, 3600 * kSecond,
                       VITAMIN_SETTING(kDuration, policy.quantum_ns, "policy.quantum",
                                       "duration of a grant to a starving stream"))),
      of_device(within(kMillisecond, 3600 * kSecond,
                       VITAMIN_SETTING(kDuration, policy.starving_after_ns, "policy.starving_after",
                                       "a stream that has waited this long for a grant is "
                                       "starving: it is granted next, oldest first"))),
      of_device(within(kMillisecond, 3600 * kSecond,
                       VITAMIN_SETTING(kDuration, policy.reservation_ns, "policy.reservation",
                                       "has no effect in this release"))),
  };
}

std::vector<SettingKey> operation_keys() {
  return {
      one_of({"shared", "class", "exclusive"},
             VITAMIN_SETTING(kChoice, isolation, "isolation",
                             "NVIDIA: whose work a program's fault on the GPU ends; shared: that "
                             "of all programs; class: that of programs of its class, for which "
                             "vitamind runs an MPS server; exclusive: its own only, outside of "
                             "MPS; programs that are isolated from each other take turns on the "
                             "GPU")),
      one_of({"open", "closed"},
             VITAMIN_SETTING(kChoice, failure.absent, "failure.absent",
                             "vitamind is not running when a program starts: open: it runs "
                             "without coordination, placed by its own policy as if the device were "
                             "its own (VIT-302); closed: it does not run (exit code 75)")),
      one_of({"fallback", "whole"},
             VITAMIN_SETTING(
                 kChoice, failure.lost, "failure.lost",
                 "vitamind ends while a program runs: fallback: each client goes on in its "
                 "fallback partition; whole: on the whole device")),
      one_of({"auto", "external", "off"},
             VITAMIN_SETTING(kChoice, mps.mode, "mps.mode",
                             "auto: vitamind starts and watches NVIDIA's MPS; external: the node's "
                             "administrator or another service starts it; off: no MPS")),
      VITAMIN_SETTING(kText, mps.directory, "mps.directory",
                      "directory of MPS's pipe and log (default: beside vitamind's socket)"),
      VITAMIN_SETTING(kText, mps.control, "mps.control", "path of NVIDIA's MPS control program"),
      VITAMIN_SETTING(kBoolean, mps.priorities, "mps.priorities",
                      "programs of kind \"batch\" are clients of MPS's lower priority"),
      within(0, 32,
             VITAMIN_SETTING(kInteger, mps.connections, "mps.connections",
                             "hardware queues of each program under MPS; 8, as without it, keep "
                             "streams from waiting for each other; 0: MPS's default, 2")),
      within(10 * kMillisecond, 3600 * kSecond,
             VITAMIN_SETTING(kDuration, mps.check_every_ns, "mps.check_every",
                             "how often vitamind checks that MPS runs")),
      VITAMIN_SETTING(kPatterns, collectives.kernels, "collectives.kernels",
                      "parts of the names of kernels that wait for kernels of other processes, "
                      "besides those whose names say so (NCCL, NVSHMEM, *all_reduce*, ...)"),
      VITAMIN_SETTING(kBoolean, collectives.cooperative, "collectives.cooperative",
                      "treat every cooperative launch as such a kernel"),
      VITAMIN_SETTING(
          kText, metrics.listen, "metrics.listen",
          "where metrics are served for Prometheus: PORT on loopback, HOST:PORT, the path "
          "of a Unix socket, or systemd, for a socket of the service manager's; empty: "
          "nowhere; the packaged unit may open no PORT, and vitamind ends with exit code 1"),
      VITAMIN_SETTING(kText, metrics.accounting, "metrics.accounting",
                      "file to which a line of JSON is appended for each client when it ends: who "
                      "it was, and what it used; empty: none"),
  };
}

}  // namespace

std::span<const SettingKey> setting_keys() {
  static const auto* const keys = [] {
    auto* all = new std::vector<SettingKey>(daemon_keys());
    for (auto* more : {&device_keys, &operation_keys})
      for (SettingKey& key : more()) all->push_back(std::move(key));
    return all;
  }();
  return *keys;
}

std::span<const ClassKey> class_keys() {
  static const auto* const keys = new std::vector<ClassKey>{
      VITAMIN_CLASS(kPatterns, command, "the program's name, or path where the pattern has a '/'"),
      VITAMIN_CLASS(kPatterns, user, "names or numbers of users"),
      VITAMIN_CLASS(kTable, environment, "variables and the patterns of their values"),
      VITAMIN_CLASS(kPatterns, slurm_job, "names or numbers of Slurm jobs"),
      VITAMIN_CLASS(kPatterns, slurm_partition, "Slurm partitions"),
      VITAMIN_CLASS(kPatterns, slurm_account, "Slurm accounts"),
      VITAMIN_CLASS(kPatterns, slurm_qos, "Slurm qualities of service"),
      one_of({"unspecified", "latency", "batch"},
             VITAMIN_CLASS(kChoice, kind, "latency: must not wait; batch: best effort")),
      within(0, 512,  // no GPU has as many SMs or CUs
             VITAMIN_CLASS(kInteger, reservation,
                           "SMs that are reserved for each client of the class")),
      VITAMIN_BOUND(ttft_ns, "ttft",
                    "bound of the time to the first token (prefill steps); 0: none"),
      VITAMIN_BOUND(tpot_ns, "tpot",
                    "bound of the time of each further token (decode steps); a latency class "
                    "without any bound: latencies as if it were alone"),
      VITAMIN_BOUND(latency_ns, "latency",
                    "bound of a request of a program that announces no steps: from when it has "
                    "something to run until it has nothing; 0: tpot, ttft or step"),
      VITAMIN_BOUND(step_ns, "step", "bound of an iteration that the program announces; 0: none"),
      within(50, 99,
             VITAMIN_CLASS(kInteger, percentile,
                           "percent of steps or requests that are to meet the bound")),
      within(1, 1000,
             VITAMIN_CLASS(kInteger, weight,
                           "how much the progress of each client of the class counts in the "
                           "policy's objective, against 1 of others")),
      within(1, 100,
             VITAMIN_CLASS(kInteger, share,
                           "percent of the device's SMs that the group of share_of may have")),
      one_of({"process", "user", "container", "job", "class"},
             VITAMIN_CLASS(kChoice, share_of,
                           "the group that has `share` and `reservation` together; for a process "
                           "that is in no container or job, its user; in a class whose only "
                           "condition is `user`, a share of a group holds for all programs of "
                           "these users, whatever class they name")),
      VITAMIN_CLASS(kMemory, memory,
                    "most memory of each device for the group that memory_of names: \"40GiB\" or "
                    "\"40Gi\" (2^30 bytes), \"40GB\" (10^9 bytes), or \"50%\" of the device's; "
                    "empty: no quota"),
      one_of({"process", "user", "container", "job", "class"},
             VITAMIN_CLASS(kChoice, memory_of,
                           "group of processes that share the quota of memory, as for share_of")),
      one_of({"unspecified", "shared", "class", "exclusive"},
             VITAMIN_CLASS(kChoice, isolation,
                           "whose work a fault on the GPU of a program of the class ends; "
                           "unspecified: as the node's isolation says")),
  };
  return *keys;
}

const SettingKey* find_setting(std::string_view path) {
  const auto keys = setting_keys();
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [&](const SettingKey& key) { return key.path == path; });
  return found == keys.end() ? nullptr : &*found;
}

std::span<const Former> former_names() {
  static constexpr Former kFormer[] = {{"policy.overdue_after", "", "policy.starving_after"},
                                       {"failure.lost", "home", "fallback"}};
  return kFormer;
}

const Former* former_value(std::string_view path, std::string_view value) {
  const auto all = former_names();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Former& former) {
    return former.path == path && former.value == value;
  });
  return found == all.end() ? nullptr : &*found;
}

const Former* former_key(std::string_view path) { return former_value(path, ""); }

std::string text_of(const Former& former) {
  const std::string_view name = former.value.empty() ? former.path : former.value;
  return "'" + std::string(name) + "' is now '" + std::string(former.now) +
         "'; the former name is read in this release only";
}

std::string environment_variable(std::string_view path) {
  std::string name = "VITAMIN_CONFIG_";
  for (const char c : path)
    name += c == '.' ? '_' : (c >= 'a' && c <= 'z') ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

namespace {

std::string joined(const std::vector<std::string>& parts, char open, char close) {
  std::string text(1, open);
  for (const std::string& part : parts) text += (text.size() > 1 ? ", " : "") + part;
  return text + close;
}

}  // namespace

template <class Target>
std::string text_of(const Key<Target>& key, const Value& value) {
  std::vector<std::string> parts;
  switch (key.type) {
    case SettingType::kText:
    case SettingType::kMemory:
      return toml_text(std::get<std::string>(value));
    case SettingType::kBoolean:
      return std::get<bool>(value) ? "true" : "false";
    case SettingType::kInteger:
      return std::to_string(std::get<std::int64_t>(value));
    case SettingType::kDuration:
      return toml_text(duration_text(static_cast<std::uint64_t>(std::get<std::int64_t>(value))));
    case SettingType::kChoice:
      return toml_text(key.choices[static_cast<std::size_t>(std::get<std::int64_t>(value))]);
    case SettingType::kPatterns:
      for (const std::string& pattern : std::get<Texts>(value)) parts.push_back(toml_text(pattern));
      return joined(parts, '[', ']');
    case SettingType::kTable:
      for (const auto& [name, text] : std::get<TextTable>(value))
        parts.push_back(toml_text(name) + " = " + toml_text(text));
      return joined(parts, '{', '}');
  }
  return {};
}
template std::string text_of(const SettingKey&, const Value&);
template std::string text_of(const ClassKey&, const Value&);

std::map<std::string, std::string> settings_of(const Configuration& configuration) {
  std::map<std::string, std::string> settings;
  for (const SettingKey& key : setting_keys())
    settings[key.path] = text_of(key, key.read(configuration));
  for (const WorkloadClass& each : configuration.classes)
    for (const ClassKey& key : class_keys())
      settings["class." + toml_text(each.name) + "." + key.path] = text_of(key, key.read(each));
  for (const DeviceRule& rule : configuration.devices)
    for (const auto& [path, value] : rule.settings)
      settings["devices." + toml_text(rule.pattern) + "." + path] =
          text_of(*find_setting(path), value);
  return settings;
}

// --- the JSON schema -------------------------------------------------------------------------

namespace {

template <class Target>
ordered_json schema_of(const Key<Target>& key) {
  ordered_json type;
  const ordered_json text = {{"type", "string"}};
  switch (key.type) {
    case SettingType::kText:
      type = text;
      break;
    case SettingType::kMemory:
      type = {{"type", "string"},
              {"pattern", "^([0-9]+(\\.[0-9]+)?(B|[kKMGT]B|[KMGT]iB?)|[0-9]+%)?$"}};
      break;
    case SettingType::kBoolean:
      type = {{"type", "boolean"}};
      break;
    case SettingType::kInteger:
      type = {{"type", "integer"}, {"minimum", key.low}};
      if (key.high != kAny) type["maximum"] = key.high;
      break;
    case SettingType::kDuration:
      type = {{"type", "string"}, {"pattern", "^(0|[0-9]+(\\.[0-9]+)?(ns|us|µs|ms|s|min|h))$"}};
      break;
    case SettingType::kChoice:
      type = {{"enum", key.choices}};
      break;
    case SettingType::kPatterns:
      type = {{"oneOf", {text, {{"type", "array"}, {"items", text}}}}};
      break;
    case SettingType::kTable:
      type = {{"type", "object"},
              {"additionalProperties", {{"type", {"string", "integer", "boolean"}}}}};
      break;
  }
  type["description"] = key.meaning;
  return type;
}

ordered_json object(ordered_json properties) {
  return {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

// The sections of the keys that `wanted` says, each an object.
template <class F>
ordered_json sections(F wanted) {
  ordered_json properties = ordered_json::object();
  for (const SettingKey& key : setting_keys()) {
    if (!wanted(key)) continue;
    const std::size_t dot = key.path.find('.');
    if (dot == key.path.npos) {
      properties[key.path] = schema_of(key);
      continue;
    }
    ordered_json& section = properties[key.path.substr(0, dot)];
    if (section.is_null()) section = object(ordered_json::object());
    section["properties"][key.path.substr(dot + 1)] = schema_of(key);
  }
  return properties;
}

ordered_json schema_of_class() {
  ordered_json properties = {{"name", {{"type", "string"}, {"description", "its name"}}}};
  for (const ClassKey& key : class_keys()) properties[key.path] = schema_of(key);
  ordered_json schema = object(std::move(properties));
  schema["required"] = {"name"};
  return {{"type", "array"}, {"items", std::move(schema)}};
}

ordered_json by_pattern(ordered_json schema) {
  return {{"type", "object"}, {"additionalProperties", std::move(schema)}};
}

}  // namespace

ordered_json json_schema() {
  const ordered_json devices =
      by_pattern(object(sections([](const SettingKey& key) { return key.of_device; })));
  ordered_json properties = sections([](const SettingKey&) { return true; });
  properties["class"] = schema_of_class();
  properties["devices"] = devices;
  const ordered_json node = object(properties);
  properties["nodes"] = by_pattern(node);
  ordered_json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                         {"title", "vitamin.toml"}};
  schema.update(object(std::move(properties)));
  return schema;
}

}  // namespace vitamin::config
