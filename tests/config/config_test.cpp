// SPDX-License-Identifier: Apache-2.0
//
// vitamin.toml: what is read, what is refused and where, which layer wins, which class matches.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "daemon/config/classes.h"
#include "daemon/config/isolation.h"
#include "daemon/config/load.h"
#include "daemon/config/pattern.h"
#include "daemon/config/schema.h"
#include "scheduler/policies/registry.h"

namespace vitamin::config {
namespace {

Loaded read(const std::string& text, const std::string& host = "gpu7.cluster") {
  return load_text(text, "v.toml", host);
}

// "3:8 the message" of each problem, a line each.
std::string problems(const std::string& text) {
  std::string all;
  for (const ConfigProblem& problem : read(text).problems)
    all += std::to_string(problem.place.line) + ":" + std::to_string(problem.place.column) + " " +
           problem.message + "\n";
  return all;
}

ProgramIdentity program(const std::string& command,
                        const std::map<std::string, std::string>& variables = {}) {
  return {command, {"1000", "ada"}, [variables](const std::string& name) {
            const auto found = variables.find(name);
            return found == variables.end() ? std::nullopt : std::optional(found->second);
          }};
}

// A debug build ended there, on an assertion of toml++: found by the fuzzer.
TEST_CASE("a section or a key without a name is an error with a place") {
  for (const std::string text : {"[=]\n", "[\x01x]\n", "[[ & ]]\n", "[ä]\n", "a = { = 1 }\n",
                                 "a. = 1\n", "[a.]\n", "[a.=]\n", "= 1\n"}) {
    CAPTURE(text);
    CHECK(problems("pool.leaf_units = 2\n" + text).starts_with("2:"));
  }
  CHECK(problems(std::string("[\0x]\n", 5)).starts_with("1:"));
}

TEST_CASE("no file at all is a valid configuration") {
  const Loaded loaded = read("");
  CHECK(loaded.valid());
  CHECK(loaded.configuration.policy.specification() == "fifo");
  CHECK(loaded.settings.size() == setting_keys().size());
  CHECK(loaded.settings.front().place.text() == "built in");
}

TEST_CASE("the example is valid and has the values that its comments describe") {
  std::ifstream file(EXAMPLE);
  std::stringstream text;
  text << file.rdbuf();
  const Loaded loaded = load_text(text.str(), "vitamin.toml", "gpu64");
  CHECK(loaded.why() == "");
  const Configuration& c = loaded.configuration;
  CHECK(c.policy.specification() == "tpot-first:cumulative=yes");
  CHECK(c.policy.quantum_ns == 2'000'000);
  CHECK(load_text(text.str(), "vitamin.toml", "gpu65").configuration.policy.quantum_ns ==
        4'000'000);
  CHECK_FALSE(c.pool.all_runs);
  CHECK(c.for_device("GPU-1", "NVIDIA H200 NVL").pool.all_runs);
  REQUIRE(c.classes.size() == 3);
  CHECK(c.classes[0].name == "serving");
  CHECK(c.classes[0].kind == ProgramKind::kLatency);
  CHECK(c.classes[0].tpot_ns == 30'000'000);
  CHECK(c.classes[0].reservation == 32);
  CHECK(c.classes[1].kind == ProgramKind::kLatency);
  CHECK(c.classes[1].tpot_ns == 0);
  CHECK(c.classes[2].share == 75);
}

TEST_CASE("a value of the command line or environment that is not UTF-8 is a problem") {
  for (const char* text : {"\xff", "a\xe2\x8au", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    const std::vector<SettingOverride> words = {{"collectives.kernels", text, "the command line"}};
    const Loaded loaded = load_texts({}, words, "gpu1");
    CHECK_FALSE(loaded.valid());
    CHECK(loaded.why() == "the command line: 'collectives.kernels' must be UTF-8\n");
  }
  const std::vector<SettingOverride> words = {
      {"collectives.kernels", "caf\xc3\xa9", "the command line"}};
  CHECK(load_texts({}, words, "gpu1").valid());
}

TEST_CASE("every setting is read from a file, the environment and the command line") {
  for (const SettingKey& key : setting_keys()) {
    CAPTURE(key.path);
    // A value that differs from the built-in one.
    std::string value, word;
    switch (key.type) {
      case SettingType::kText:
        value = "\"throughput\"", word = "throughput";
        break;
      case SettingType::kBoolean:
        value = word = std::get<bool>(key.read({})) ? "false" : "true";
        break;
      case SettingType::kInteger:
        value = word = std::to_string(key.low + 1);
        break;
      case SettingType::kDuration:
        value = "\"17ms\"", word = "17ms";
        break;
      case SettingType::kChoice:
        value = "\"" + key.choices.back() + "\"", word = key.choices.back();
        break;
      case SettingType::kMemory:
        value = "\"3GiB\"", word = "3GiB";
        break;
      case SettingType::kPatterns:
        value = "\"a*\"", word = "a*";
        break;
      case SettingType::kTable:
        value = "{ units = \"0-3\" }", word = "units=0-3";
        break;
    }
    std::string text = key.path + " = " + value + "\n";
    Sources sources;
    if (key.type == SettingType::kTable) {
      text += "policy.name = \"static\"\n";
      sources.assignments.push_back({"policy.name", "static", "the command line"});
    }
    sources.assignments.push_back({key.path, word, "the command line"});
    const Loaded from_file = read(text), from_word = load(sources);
    CHECK(from_file.why() == "");
    CHECK(from_word.why() == "");
    const Value built_in = key.read(Configuration{});
    CHECK(key.read(from_file.configuration) != built_in);
    CHECK(key.read(from_word.configuration) == key.read(from_file.configuration));
  }
}

TEST_CASE("all problems are reported at once, each with its place and a suggestion") {
  CHECK(problems("[policy]\n"
                 "quantun = \"2ms\"\n"
                 "quantum = 4\n"
                 "name = \"radnom\"\n"
                 "[poool]\n"
                 "leaf_units = 1\n"
                 "[mps]\n"
                 "  mode = \"on\"\n") ==
        "2:1 unknown key 'policy.quantun'; did you mean 'quantum'?\n"
        "3:11 'policy.quantum' must be a text of a number and its unit, like \"4ms\", from 10us "
        "to 1h\n"
        "4:1 the policy (radnom) is unknown; did you mean 'random'? Known policies: fifo, "
        "throughput, slo, tpot-first, static, exclusive, temporal, salus, orion, random, "
        "extremes\n"
        "5:2 unknown key 'poool'; did you mean 'pool'?\n"
        "8:10 'mps.mode' must be one of \"auto\" \"external\" \"off\"\n");
  CHECK(problems("quantum = \"2ms\"\n") ==
        "1:1 unknown key 'quantum'; did you mean 'policy.quantum'?\n");
  CHECK(problems("pool.leaf_units = 65\n") ==
        "1:19 'pool.leaf_units' must be a whole number from 1 to 64\n");
  CHECK(problems("pool = 3\n") == "1:1 'pool' is a section\n");
}

TEST_CASE("a text that is not TOML is one problem at its place") {
  const Loaded loaded = read("[policy]\nname = \"fifo\n");
  REQUIRE(loaded.problems.size() == 1);
  CHECK(loaded.problems[0].place.line == 2);
  CHECK(loaded.problems[0].line == "name = \"fifo");
  const std::string shown = text_of(loaded.problems[0], true);
  CHECK(shown.find("v.toml:2:") == 0);
  CHECK(shown.find("  2 | name = \"fifo\n") != std::string::npos);
  CHECK(shown.back() == '^');
}

TEST_CASE("an invalid parameter of the policy is reported at its own place") {
  CHECK(problems("[policy]\nname = \"random\"\nparameters = { evry = 2 }\n") ==
        "3:16 the policy 'random' has no parameter 'evry'; did you mean 'every'?\n");
  CHECK(problems("[policy]\nname = \"tpot-first\"\nparameters = { target = 30 }\n") ==
        "3:16 the policy 'tpot-first' has no parameter 'target' any more: use tpot of a "
        "[[class]] of vitamin.toml\n");
  CHECK(problems("[policy]\nname = \"random\"\nparameters = { max = 32 }\n") ==
        "3:16 the policy 'random' has no parameter 'max' any more: use max_sms\n");
  CHECK(problems("[policy]\nname = \"random\"\n[policy.parameters]\nmin_sms = 64\nmax_sms = 8\n")
            .find("min_sms is 64, above max_sms, which is 8") != std::string::npos);
  for (const char* word : {"true", "1", "\"true\""})
    CHECK(read("policy = { name = \"random\", parameters = { whole = " + std::string(word) + " } }")
              .valid());
  CHECK(problems("[policy]\nname = \"throughput\"\nparameters = { objective = \"paper\" }\n") ==
        "3:16 the policy 'throughput' has no parameter 'objective=paper' any more: use "
        "model=algorithm1,relative=paper\n");
  CHECK(problems("[policy]\nname = \"random\"\n[policy.parameters]\nevery = \"x\"\n").find('4') !=
        0);  // the value's own check names the parameter
  CHECK_FALSE(read("policy = { name = \"random\", parameters = { every = \"x\" } }").valid());
  CHECK(read("policy = { name = \"random\", parameters = { every = 4, min_sms = 16 } }")
            .configuration.policy.specification() == "random:every=4,min_sms=16");
}

TEST_CASE("the policy and parameters of a device section are checked together") {
  CHECK(problems("[policy]\nname = \"random\"\nparameters = { every = 2 }\n"
                 "[devices.\"GPU-1*\".policy]\nname = \"fifo\"\n") == "");
  CHECK(problems("[devices.\"GPU-1*\".policy]\nname = \"fifo\"\nparameters = { every = 2 }\n") ==
        "3:16 the policy 'fifo' has no parameter 'every'\n");
  CHECK(problems("[devices.\"GPU-1*\".mps]\nmode = \"off\"\n").find("1:") == 0);
  const Loaded loaded = read(
      "[policy]\nname = \"random\"\nparameters = { every = 2 }\n"
      "[devices.\"GPU-1*\".policy]\nname = \"throughput\"\n");
  CHECK(loaded.configuration.for_device("GPU-12", "x").policy.specification() == "throughput");
  CHECK(loaded.configuration.for_device("GPU-2", "x").policy.specification() == "random:every=2");
}

TEST_CASE("a node section applies to nodes that match its pattern, and is checked on all nodes") {
  const std::string text =
      "policy.quantum = \"1ms\"\n[nodes.\"gpu[1-8]\"]\n"
      "policy.quantum = \"2ms\"\n[nodes.\"gpu7*\"]\npolicy.quantum = \"3ms\"";
  CHECK(read(text, "gpu7.cluster").configuration.policy.quantum_ns == 3'000'000);
  CHECK(read(text, "gpu8").configuration.policy.quantum_ns == 2'000'000);
  CHECK(read(text, "gpu9").configuration.policy.quantum_ns == 1'000'000);
  CHECK(problems("[nodes.\"elsewhere\"]\npolicy.quantun = \"2ms\"\n").find("2:8 unknown key") == 0);
  CHECK(problems("[nodes.\"gpu[1-\"]\n").find("the pattern: '[' without ']'") != std::string::npos);
  CHECK_FALSE(read("[nodes.a.nodes.b]\n").valid());
}

TEST_CASE("a later policy does not inherit the parameters of an earlier one") {
  Sources sources;
  sources.assignments = {{"policy.name", "random", "1"},
                         {"policy.parameters", "every=3", "2"},
                         {"policy.name", "throughput", "3"}};
  const Loaded loaded = load(sources);
  CHECK(loaded.why() == "");
  CHECK(loaded.configuration.policy.specification() == "throughput");
}

TEST_CASE("a program is of the first class whose conditions all hold") {
  const Loaded loaded = read(
      "[[class]]\nname = \"a\"\ncommand = \"train*\"\nenvironment = { TASK = \"[1-9]\" }\n"
      "[[class]]\nname = \"b\"\ncommand = [\"/opt/*\", \"serve\"]\nuser = \"ada\"\n"
      "[[class]]\nname = \"c\"\nslurm_partition = \"debug,long\"\nslurm_job = \"17\"\n"
      "[[class]]\nname = \"d\"\nuser = \"root,0\"\n");
  REQUIRE(loaded.why() == "");
  auto of = [&](const ProgramIdentity& program) {
    const WorkloadClass* found = class_of(loaded.configuration, program);
    return found == nullptr ? std::string() : found->name;
  };
  CHECK(of(program("/x/train.py", {{"TASK", "3"}})) == "a");
  CHECK(of(program("train.py")).empty());
  CHECK(of(program("train.py", {{"TASK", "10"}})).empty());
  CHECK(of(program("/opt/bin/x")) == "b");
  CHECK(of(program("/srv/serve")) == "b");
  CHECK(of(program("x", {{"SLURM_JOB_PARTITION", "long"}, {"SLURM_JOB_ID", "17"}})) == "c");
  CHECK(of(program("x", {{"SLURM_JOB_PARTITION", "long"}, {"SLURM_JOB_ID", "18"}})).empty());
  CHECK(may_be_in(loaded.configuration.classes[1], {"1000", "ada"}));
  CHECK_FALSE(may_be_in(loaded.configuration.classes[3], {"1000", "ada"}));
}

TEST_CASE("a class whose programs all match earlier classes is reported as having no effect") {
  auto class_of = [](const std::string& name, const std::string& conditions) {
    return "[[class]]\nname = \"" + name + "\"\n" + conditions + "\n";
  };
  struct Pair {
    const char* first;
    const char* second;
    bool reached;
  };
  for (const Pair& pair : {
           Pair{"user = \"ada\"", "user = \"ada\"\nkind = \"batch\"", false},
           {"user = \"ada\"", "user = \"ada,bob\"", true},
           {"user = [\"bob\", \"a*\"]", "user = \"ada,bob\"", false},
           {"user = \"a*\"", "user = \"ad?\"", false},
           {"user = \"ad?\"", "user = \"a*\"", true},
           {"user = \"serve[1-8]\"", "user = \"serve3\"", false},
           {"user = \"serve[1-8]\"", "user = \"serve9\"", true},
           {"user = \"serve[1,2]\"", "user = \"serve[1,2]\"", false},
           {"user = \"ada\"", "command = \"x\"", true},
           {"user = \"ada\"\ncommand = \"x\"", "user = \"ada\"", true},
           {"command = \"py*\"", "command = \"/usr/bin/python3\"", false},
           {"command = \"py*\"", "command = \"/opt/py*\"", true},  // "/opt/py/other"
           {"command = \"/usr/bin/python3\"", "command = \"python3\"", true},
           {"command = \"/opt/*\"", "command = \"/opt/serve/*\"", false},
           {"environment = { TASK = \"*\" }", "environment = { TASK = \"3\", X = \"1\" }", false},
           {"environment = { TASK = \"3\", X = \"1\" }", "environment = { TASK = \"3\" }", true},
           {"slurm_partition = \"debug,long\"", "slurm_partition = \"long\"", false},
       }) {
    CAPTURE(pair.first);
    CAPTURE(pair.second);
    const Loaded loaded = read(class_of("first", pair.first) + class_of("second", pair.second));
    CHECK(loaded.valid());  // it can be named all the same
    CHECK(loaded.no_effect.size() == (pair.reached ? 0 : 1));
    for (const ConfigProblem& vain : loaded.no_effect)
      CHECK(vain.message.find("the class 'second' matches no program: 'first'") == 0);
  }
}

TEST_CASE("bounds, percentile and weight of a class are read") {
  const Loaded loaded = read(
      "policy.name = \"slo\"\n[[class]]\nname = \"s\"\nkind = \"latency\"\nttft = \"0.5s\"\n"
      "tpot = \"30ms\"\nlatency = \"2s\"\nstep = \"1min\"\npercentile = 95\nweight = 3\n");
  CHECK(loaded.why() == "");
  CHECK(loaded.no_effect.empty());
  const WorkloadClass& made = loaded.configuration.classes[0];
  CHECK(made.ttft_ns == 500'000'000);
  CHECK(made.tpot_ns == 30'000'000);
  CHECK(made.latency_ns == 2'000'000'000);
  CHECK(made.step_ns == 60'000'000'000);
  CHECK(made.percentile == 95);
  CHECK(made.weight == 3);
}

TEST_CASE("a bound under a policy that ignores bounds is reported as having no effect") {
  for (const std::string key : {"ttft", "tpot", "latency", "step"}) {
    CAPTURE(key);
    const std::string serving =
        "[[class]]\nname = \"s\"\nkind = \"latency\"\n" + key + " = \"30ms\"\n";
    for (const char* policy : {"fifo", "throughput", "random:max_sms=4"}) {
      const Loaded loaded = read("policy.name = \"" + std::string(policy) + "\"\n" + serving);
      CHECK(loaded.valid());
      REQUIRE(loaded.no_effect.size() == 1);
      CHECK(text_of(loaded.no_effect.front(), false) ==
            "v.toml:5:1: the policy '" + std::string(policy) + "' keeps no latency bounds: '" +
                key + "' of the class 's' has no effect; policies that do: slo, tpot-first");
    }
    for (const char* policy : {"slo", "tpot-first", "/opt/mine.so"})
      CHECK(read("policy.name = \"" + std::string(policy) + "\"\n" + serving).no_effect.empty());
    // One device whose policy does keep them.
    CHECK(read("policy.name = \"fifo\"\n[devices.\"GPU-1*\"]\npolicy.name = \"tpot-first\"\n" +
               serving)
              .no_effect.empty());
  }
  const Loaded both = read(
      "[[class]]\nname = \"s\"\nkind = \"latency\"\ntpot = \"30ms\"\nstep = \"1s\"\n"
      "percentile = 95\n");
  CHECK(both.no_effect.size() == 3);
}

TEST_CASE("names of the release before are read, with a line that says what they are called now") {
  const std::string key =
      "'policy.overdue_after' is now 'policy.starving_after'; the former name is read in this "
      "release only";
  const std::string value =
      "'home' is now 'fallback'; the former name is read in this release only";
  const Loaded file = read(
      "policy.overdue_after = \"3s\"\nfailure.lost = \"home\"\n"
      "[devices.\"GPU-1*\".policy]\noverdue_after = \"4s\"\n");
  CHECK(file.why() == "");
  REQUIRE(file.renamed.size() == 3);
  CHECK(text_of(file.renamed[0], false).find(": " + key) != std::string::npos);
  CHECK(text_of(file.renamed[1], false) == "v.toml:2:16: " + value);
  CHECK(text_of(file.renamed[2], false) == "v.toml:4:1: " + key);
  CHECK(file.configuration.policy.starving_after_ns == 3'000'000'000);
  CHECK(file.configuration.failure.lost == OnLoss::kFallback);
  CHECK(file.configuration.for_device("GPU-1x", "").policy.starving_after_ns == 4'000'000'000);

  const std::vector<SettingOverride> assignments = {
      {"policy.overdue_after", "5s", "the command line"},
      {"failure.lost", "home", "the command line"}};
  const Loaded words = load_texts({}, assignments, "");
  CHECK(words.why() == "");
  REQUIRE(words.renamed.size() == 2);
  CHECK(text_of(words.renamed[0], false) == "the command line: " + key);
  CHECK(text_of(words.renamed[1], false) == "the command line: " + value);
  CHECK(words.configuration.policy.starving_after_ns == 5'000'000'000);

  CHECK(read("policy.starving_after = \"3s\"\nfailure.lost = \"whole\"\n").renamed.empty());
  CHECK(read("failure.lost = \"hom\"\n").why().find("one of \"fallback\" \"whole\"") !=
        std::string::npos);
}

TEST_CASE("a weight under a policy that ignores weights is reported as having no effect") {
  const auto no_effect = [](const std::string& policy) {
    const Loaded loaded = read(policy + "\n[[class]]\nname = \"s\"\nweight = 2\n");
    CHECK(loaded.valid());
    return loaded.no_effect.empty() ? "" : text_of(loaded.no_effect.front(), false);
  };
  CHECK(no_effect("policy.name = \"fifo\"") ==
        "v.toml:4:1: the policy 'fifo' weighs no clients: 'weight' of the class 's' has no effect; "
        "policies that do: throughput, slo, tpot-first");
  CHECK(no_effect("policy.name = \"throughput\"") == "");
  CHECK(no_effect("policy = { name = \"throughput\", parameters = { model = \"algorithm1\" } }") !=
        "");
  CHECK(no_effect("policy.name = \"slo\"") == "");
}

TEST_CASE("the command line changes keys of classes of a file") {
  const std::vector<ConfigText> files = {
      {"v.toml",
       "policy.name = \"slo\"\n[[class]]\nname = \"a.b\"\nkind = \"latency\"\ntpot = \"9ms\"\n"}};
  const auto load = [&](const std::string& path, const std::string& text) {
    const std::vector<SettingOverride> words = {{path, text, "the command line"}};
    return load_texts(files, words, "gpu1");
  };
  for (const std::string path : {"class.a.b.tpot", "class.\"a.b\".tpot"}) {
    const Loaded loaded = load(path, "30ms");
    CHECK(loaded.why() == "");
    REQUIRE(loaded.configuration.classes.size() == 1);
    CHECK(loaded.configuration.classes[0].tpot_ns == 30'000'000);
    CHECK(loaded.configuration.classes[0].kind == ProgramKind::kLatency);
    const auto shown = std::find_if(loaded.settings.begin(), loaded.settings.end(),
                                    [](const auto& s) { return s.path == "class.\"a.b\".tpot"; });
    REQUIRE(shown != loaded.settings.end());
    CHECK(shown->place.text() == "the command line");
  }
  CHECK(load("class.a.b.step", "1s").configuration.classes[0].step_ns == 1'000'000'000);
  CHECK(load("class.a.b.tpott", "1s").why() ==
        "the command line: a class has no 'tpott'; did you mean 'tpot'?\n");
  CHECK(load("class.a.c.tpot", "1s").why() ==
        "the command line: no file has a class 'a.c'; did you mean 'a.b'?\n");
  CHECK(load("class.tpot", "1s").why() ==
        "the command line: 'class.tpot' is no class.NAME.KEY like class.serving.tpot\n");
  CHECK(load("class.a.b.weight", "0").why() ==
        "the command line: 'class.a.b.weight' must be a whole number from 1 to 1000\n");
  CHECK_FALSE(load("class.a.b.kind", "batch").valid());  // it has a bound
  CHECK_FALSE(load("class.a.b.environment", "X=[").valid());
}

TEST_CASE("classes that can never match or contradict themselves are problems") {
  CHECK(problems("[[class]]\nname = \"all\"\n[[class]]\nname = \"x\"\nuser = \"y\"\n")
            .find("3:1 the class 'x' is never reached") == 0);
  CHECK(problems("[[class]]\nuser = \"y\"\n") == "1:1 a class needs a name\n");
  CHECK(
      problems("[[class]]\nname = \"x\"\ntpot = \"3ms\"\nkind = \"batch\"\n") ==
      "3:1 'tpot' of the class 'x' is a bound, which is for a class of kind \"latency\": add kind "
      "= \"latency\", or remove the bound\n");
  CHECK(problems("[[class]]\nname = \"x\"\nstep = \"3ms\"\n").find("3:1 'step' of") == 0);
  CHECK(problems("[[class]]\nname = \"x\"\npercentile = 90\n").find("3:1 'percentile' of") == 0);
  CHECK(problems("[[class]]\nname = \"x\"\npercentile = 100\n") ==
        "3:14 'percentile' must be a whole number from 50 to 99\n");
  CHECK(problems("[class]\nname = \"x\"\n").find("double brackets") != std::string::npos);
  CHECK(problems("[[class]]\nname = \"x\"\ncomand = \"y\"\n") ==
        "3:1 a class has no 'comand'; did you mean 'command'?\n");
}

TEST_CASE("a class's isolation comes before the node's, and programs without a class share") {
  const auto isolation = [](const std::string& text, const std::string& name) {
    const Configuration configuration = read(text).configuration;
    return isolation_of(configuration, configuration.find_class(name));
  };
  const std::string classes =
      "[[class]]\nname = \"a\"\n[[class]]\nname = \"b\"\nisolation = \"exclusive\"\n"
      "[[class]]\nname = \"c\"\nisolation = \"shared\"\n";
  using enum Isolation;
  struct Case {
    std::string node;
    Isolation none, a, b, c;
  };
  for (const Case& each :
       {Case{"", kShared, kShared, kExclusive, kShared},
        {"isolation = \"class\"\n", kShared, kClass, kExclusive, kShared},
        {"isolation = \"exclusive\"\n", kExclusive, kExclusive, kExclusive, kShared}}) {
    CHECK(isolation(each.node + classes, "") == each.none);
    CHECK(isolation(each.node + classes, "a") == each.a);
    CHECK(isolation(each.node + classes, "b") == each.b);
    CHECK(isolation(each.node + classes, "c") == each.c);
  }
  CHECK_FALSE(isolates(read("[[class]]\nname = \"a\"\n").configuration));
  CHECK(isolates(read(classes).configuration));
}

TEST_CASE("each class has a directory of MPS of its own, whatever its name") {
  CHECK(directory_of_class("/run/mps", "serving-1") == "/run/mps.serving-1");
  std::set<std::string> directories = {"/m", directory_without_mps("/m")};
  const std::string long_name(63, 'x');
  for (const std::string& name :
       {std::string("a"), std::string("A"), std::string("a/b"), std::string("a b"),
        std::string(".."), std::string("none"), std::string("-none"), long_name, long_name + "y"}) {
    const std::string directory = directory_of_class("/m", name);
    CHECK(directory.find('/', 1) == directory.npos);
    CHECK(directory.size() < 40);
    CHECK(directories.insert(directory).second);
  }
}

TEST_CASE("patterns match lists, number ranges, '*' and '?'") {
  CHECK(matches("gpu[1-64]", "gpu64"));
  CHECK_FALSE(matches("gpu[1-64]", "gpu65"));
  CHECK_FALSE(matches("gpu[1-64]", "gpu6x"));
  CHECK(matches("gpu[001-128]", "gpu007"));
  CHECK_FALSE(matches("gpu[001-128]", "gpu7"));
  CHECK(matches("a[1,3,5-7]b,login*", "a6b"));
  CHECK(matches("a[1,3,5-7]b,login*", "login-2"));
  CHECK_FALSE(matches("a[1,3,5-7]b,login*", "a4b"));
  CHECK(matches("*-r[1-9]n*", "a-r3n17"));
  CHECK(matches("?b*d", "abcd"));
  CHECK_FALSE(matches("?b*d", "abce"));
  CHECK(matches("*", ""));
  CHECK_FALSE(matches("", ""));
  CHECK(pattern_problem("a[2-1]"));
  CHECK(pattern_problem("a]"));
  // Quadratic at worst: exponential would not end.
  CHECK_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST_CASE("durations are parsed with their unit and printed as the shortest text") {
  CHECK(duration_ns("4ms") == 4'000'000);
  CHECK(duration_ns("1.5s") == 1'500'000'000);
  CHECK(duration_ns("2h") == 7'200'000'000'000);
  CHECK(duration_ns("0") == 0);
  CHECK_FALSE(duration_ns("4"));
  CHECK_FALSE(duration_ns("-4ms"));
  CHECK_FALSE(duration_ns("4 ms"));
  CHECK_FALSE(duration_ns("4mss"));
  CHECK_FALSE(duration_ns(""));
  for (const char* text : {"0s", "10us", "4ms", "90s", "1h", "25ns"})
    CHECK(duration_text(*duration_ns(text)) == text);
}

TEST_CASE("sizes have binary and decimal units, and the shortest text is the unit's own") {
  for (const auto& [text, bytes] :
       std::initializer_list<std::pair<const char*, std::uint64_t>>{{"40GiB", 40ULL << 30},
                                                                    {"40Gi", 40ULL << 30},
                                                                    {"40GB", 40'000'000'000},
                                                                    {"1.5Ti", 3ULL << 39},
                                                                    {"10kB", 10'000},
                                                                    {"7B", 7}}) {
    const auto bound = memory_bound(text);
    const std::string size = text;
    CHECK_MESSAGE(bound.has_value(), size);
    if (!bound) continue;
    CHECK(bound->bytes == bytes);
    CHECK(memory_bound(memory_text(*bound)) == bound);
  }
  CHECK(memory_text({.bytes = 10'000'000'000}) == "10GB");
  CHECK(memory_text({.bytes = 10ULL << 30}) == "10GiB");
  CHECK(memory_text({.percent = 50}) == "50%");
  // "G" alone is decimal to Kubernetes and binary to Slurm.
  for (const char* text :
       {"40G", "40", "40gb", "40 GiB", "0GiB", "-1GiB", "101%", "0.5%", "512TiB"})
    CHECK_MESSAGE(!memory_bound(text), text);
}

}  // namespace
}  // namespace vitamin::config
