// SPDX-License-Identifier: Apache-2.0
//
// differential: asks a CUDA driver questions about its semantics and prints the answers.
//
//   differential --list
//   differential RULE [--driver LIB] [--kernels FILE]            prints the trace of one rule
//   differential RULE --expect TRACE [--either FILE] …           fails where the trace differs; the
//                                                                lines that FILE names may
//   differential --all --out DIR [--jobs N] [--timeout S] …      writes DIR/RULE.trace for each
//
// Two drivers agree when their traces are equal. Each rule runs in a process of its own.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "session.h"

namespace vitamin::differential {
namespace {

struct Options {
  std::string rule;
  std::string driver = "libcuda.so.1";
  std::string kernels;
  std::string expect;
  std::string either;
  std::string out;
  unsigned jobs = 1;
  unsigned timeout_s = 60;
  bool list = false;
  bool all = false;
};

[[noreturn]] void usage(const std::string& complaint) {
  std::fprintf(
      stderr,
      "differential: %s\nusage: differential --list | RULE [--expect TRACE [--either FILE]] "
      "| --all --out DIR\n       [--jobs N] [--driver LIBRARY] [--kernels FILE] "
      "[--timeout SECONDS]\n",
      complaint.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) usage(word + " needs a value");
      return argv[++i];
    };
    if (word == "--list")
      options.list = true;
    else if (word == "--all")
      options.all = true;
    else if (word == "--driver")
      options.driver = value();
    else if (word == "--kernels")
      options.kernels = value();
    else if (word == "--expect")
      options.expect = value();
    else if (word == "--either")
      options.either = value();
    else if (word == "--out")
      options.out = value();
    else if (word == "--jobs")
      options.jobs = static_cast<unsigned>(std::stoul(value()));
    else if (word == "--timeout")
      options.timeout_s = static_cast<unsigned>(std::stoul(value()));
    else if (word.starts_with("--"))
      usage("unknown option " + word);
    else
      options.rule = word;
  }
  return options;
}

// The kernels lie beside the program unless told otherwise.
void name_kernels(const Options& options) {
  std::string path = options.kernels;
  if (path.empty() && std::getenv("VITAMIN_DIFFERENTIAL_KERNELS") != nullptr) return;
  if (path.empty()) {
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
      usage("/proc/self/exe is unreadable");
    path = std::string(self) + "_kernels.fatbin";
  }
  setenv("VITAMIN_DIFFERENTIAL_KERNELS", path.c_str(), 1);
}

const Rule* find_rule(const std::string& name) {
  for (const Rule& rule : rules())
    if (name == rule.name) return &rule;
  return nullptr;
}

int run_here(const Rule& rule, const Options& options) {
  // A stream that shares a hardware queue with a held one would wait for it; rules ask about
  // semantics, so every stream gets a queue of its own as far as there are any.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  Say{"# {}", rule.question};
  try {
    api.open(options.driver.c_str());
    rule.run();
    Say{"# end"};
  } catch (const std::exception& failure) {
    Say{"# not answered: {}", failure.what()};
  }
  std::fflush(stdout);
  // Streams may still be held and contexts faulted: nothing of the driver is torn down.
  _exit(0);
}

struct Child {
  const Rule* rule = nullptr;
  pid_t pid = 0;
  int output = -1;
  std::string text;
  std::chrono::steady_clock::time_point deadline;
  bool silent = false;  // its output has ended, or its time is up
  int status = 0;
};

Child start(const Rule& rule, const Options& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) usage("no pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    execl("/proc/self/exe", "differential", rule.name, "--driver", options.driver.c_str(),
          static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[1]);
  return {&rule,
          pid,
          ends[0],
          {},
          std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_s)};
}

// Reads what there is; true when the child's output has ended or its time is up.
bool advance(Child& child) {
  pollfd ready{child.output, POLLIN, 0};
  if (poll(&ready, 1, 1) > 0) {
    char bytes[4096];
    const ssize_t count = read(child.output, bytes, sizeof bytes);
    if (count <= 0) return true;
    child.text.append(bytes, static_cast<std::size_t>(count));
  }
  if (std::chrono::steady_clock::now() < child.deadline) return false;
  kill(child.pid, SIGKILL);
  child.text += "# no answer in time\n";
  return true;
}

// A process that leaves held streams behind takes the driver seconds to clear away, and goes on
// after its output has ended: others are served meanwhile. True when it is gone.
bool reap(Child& child, bool wait) {
  return waitpid(child.pid, &child.status, wait ? 0 : WNOHANG) == child.pid;
}

std::string finish(Child& child) {
  close(child.output);
  const int status = child.status;
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
    child.text += "# killed by signal " + std::to_string(WTERMSIG(status)) + "\n";
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    child.text += "# exit code " + std::to_string(WEXITSTATUS(status)) + "\n";
  return child.text;
}

// Those that ask most often what waits begin first: one that is started last is waited for alone.
std::vector<const Rule*> longest_first() {
  std::vector<const Rule*> ordered;
  for (const Rule& rule : rules()) ordered.push_back(&rule);
  std::stable_partition(ordered.begin(), ordered.end(), [](const Rule* rule) {
    const std::string_view name = rule->name;
    return name == "queue_depth" || name.starts_with("pending_on_") ||
           name.ends_with("_behind_a_gate");
  });
  return ordered;
}

int run_all(const Options& options) {
  int unanswered = 0;
  std::deque<Child> running;
  std::vector<std::pair<double, const char*>> seconds;
  const std::vector<const Rule*> ordered = longest_first();
  std::size_t next = 0;
  while (next < ordered.size() || !running.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (next < ordered.size() && running.size() < options.jobs)
      running.push_back(start(*ordered[next++], options));
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (!running[i].silent) running[i].silent = advance(running[i]);
      if (!running[i].silent) continue;
      if (!reap(running[i], false)) continue;
      Child child = std::move(running[i]);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i--));
      const std::string text = finish(child);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - child.deadline +
                                                 std::chrono::seconds(options.timeout_s);
      seconds.emplace_back(took.count(), child.rule->name);
      std::ofstream(options.out + "/" + child.rule->name + ".trace") << text;
      const bool answered = text.ends_with("# end\n");
      unanswered += !answered;
      if (!answered) {
        const std::size_t last = text.rfind('\n', text.size() - 2);
        std::printf("%s: %s", child.rule->name,
                    text.substr(last == std::string::npos ? 0 : last + 1).c_str());
      }
    }
  }
  std::printf("%zu rules, %d not answered to the end; longest:", rules().size(), unanswered);
  std::sort(seconds.rbegin(), seconds.rend());
  for (std::size_t i = 0; i < std::min<std::size_t>(5, seconds.size()); ++i)
    std::printf(" %s %.1f s", seconds[i].second, seconds[i].first);
  std::printf("\n");
  return unanswered == 0 ? 0 : 1;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

std::vector<std::string> answer(const Rule& rule, const Options& options) {
  Child child = start(rule, options);
  while (!advance(child)) {
  }
  reap(child, true);
  return lines(finish(child));
}

void print_differences(const std::vector<std::string>& expected,
                       const std::vector<std::string>& got) {
  for (std::size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
    const std::string want = i < expected.size() ? expected[i] : "(no such line)";
    const std::string have = i < got.size() ? got[i] : "(no such line)";
    if (want != have)
      std::printf("line %zu\n  kept: %s\n  here: %s\n", i + 1, want.c_str(), have.c_str());
  }
}

// What FILE says of a rule: parts of the lines that the real driver itself answers either way, from
// "rule: part of a line: reason".
std::vector<std::string> answered_either_way(const Rule& rule, const std::string& file) {
  std::vector<std::string> parts;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const std::string head = std::string(rule.name) + ": ";
    if (!line.starts_with(head)) continue;
    parts.push_back(line.substr(head.size(), line.find(": ", head.size()) - head.size()));
  }
  return parts;
}

// Such lines without what the driver answered.
std::vector<std::string> without(std::vector<std::string> text,
                                 const std::vector<std::string>& parts) {
  for (std::string& line : text)
    for (const std::string& part : parts)
      if (const std::size_t at = line.find(part); at != std::string::npos)
        line.resize(at + part.size());
  return text;
}

// A machine that is busy may answer "not yet" where the kept answer is yes. So an answer that
// differs is asked for twice more, with longer time-outs; one that still differs is different. A
// rule is mostly time-outs, so it may take as much longer (one of 36 questions that wait for two
// each: 11, 85 and 340 s).
int compare(const Rule& rule, const Options& options) {
  std::ifstream file(options.expect);
  if (!file) {
    std::printf("There is no kept trace of %s: %s cannot be read.\n", rule.name,
                options.expect.c_str());
    return 1;
  }
  const std::vector<std::string> either = answered_either_way(rule, options.either);
  const std::vector<std::string> expected = without(
      lines(std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>())),
      either);
  std::vector<std::string> got;
  unsigned first_s = 0;  // what the first answer took; 0: it had no end
  for (const unsigned factor : {1U, 8U, 32U}) {
    const std::string longer = std::to_string(factor * timeout().count());
    setenv("VITAMIN_DIFFERENTIAL_TIMEOUT_MS", longer.c_str(), 1);
    Options limited = options;
    limited.timeout_s += factor * first_s;
    const auto began = std::chrono::steady_clock::now();
    got = without(answer(rule, limited), either);
    if (got == expected) return 0;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    if (factor == 1 && !got.empty() && got.back() == "# end")
      first_s = 1 + static_cast<unsigned>(took.count());
  }
  print_differences(expected, got);
  return 1;
}

int run(const Options& options) {
  name_kernels(options);
  if (options.list) {
    for (const Rule& rule : rules()) std::printf("%s: %s\n", rule.name, rule.question);
    return 0;
  }
  if (options.all) {
    if (options.out.empty()) usage("--all needs --out");
    return run_all(options);
  }
  const Rule* rule = find_rule(options.rule);
  if (rule == nullptr) usage("there is no rule '" + options.rule + "'");
  return options.expect.empty() ? run_here(*rule, options) : compare(*rule, options);
}

}  // namespace
}  // namespace vitamin::differential

// NOLINTNEXTLINE(bugprone-exception-escape): what escapes ends the process with its text
int main(int argc, char** argv) {
  return vitamin::differential::run(vitamin::differential::parse(argc, argv));
}
