// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/job.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "hal/fnv1a.h"
#include "hal/read_file.h"

namespace vitamin::sim {
namespace {

using hal::Errc;
using scheduler::StepKind;

constexpr std::string_view kFirst = "vitamin-job 1";

// Reads line by line into a job; each function answers what is wrong, or "".
class Reader {
 public:
  RecordedJob job;

  std::string line(const std::string& text) {
    std::istringstream words(text);
    std::string word;
    words >> word;
    if (word == "name") return words >> job.name ? "" : "the name is missing";
    if (word == "processors")
      return words >> job.sms && job.sms > 0 && job.sms <= 4096 ? ""
                                                                : "processors must be 1 to 4096";
    if (word == "launch") return time(words, &job.launch_ns);
    if (word == "return") return time(words, &job.return_ns);
    if (word == "gap") return time(words, &job.gap_ns);
    if (word == "kernel") return kernel(words);
    if (word == "part") return part(words);
    if (job.parts.empty()) return "'" + word + "' before the first part";
    if (word == "k") return operation(words, RecordedJob::Call::kKernel);
    if (word == "c") return operation(words, RecordedJob::Call::kCopy);
    if (word == "w") return operation(words, RecordedJob::Call::kWait);
    if (word == "end") return time(words, &job.parts.back().end_ns);
    return "'" + word + "' is unknown";
  }

  std::string finish() {
    if (job.parts.empty()) return "there is no part";
    for (RecordedJob::Part& part : job.parts) {
      bool any = false;
      for (std::size_t i = 0; i < part.operations.size(); ++i)
        if (part.operations[i].call == RecordedJob::Call::kKernel) any = true, part.last_kernel = i;
      if (!any) return "part " + part.name + " has no kernel";
    }
    if (job.parts.size() > 2 ||
        (job.serves() && (job.parts[0].name != "prefill" || job.parts[1].name != "decode")))
      return "the parts must be one step, or prefill and decode";
    return "";
  }

 private:
  static std::string time(std::istringstream& words, double* ns) {
    return words >> *ns && std::isfinite(*ns) && *ns >= 0 && *ns < 1e12
               ? ""
               : "a time must be nanoseconds, 0 or more";
  }

  std::string kernel(std::istringstream& words) {
    std::size_t number = 0;
    runtime::KernelProfile known;
    RecordedJob::Kernel kernel;
    if (!(words >> number >> known.blocks >> known.resident >> kernel.memory >> kernel.beside) ||
        kernel.memory < 0 || kernel.memory > 1 || !(kernel.beside >= 1) || kernel.beside > 100)
      return "a kernel needs a number, blocks, blocks a processor holds, a share of the bandwidth, "
             "how much longer it takes where there is none left";
    if (number != job.kernels.size()) return "kernels are numbered from 0, in order";
    if (job.sms == 0) return "kernels come behind the processors";
    runtime::Profile profile;
    profile.describe(1, "", known.blocks, known.resident);
    std::string word;
    while (words >> word) {
      unsigned width = 0;
      double ns = 0;
      int used = 0;
      if (std::sscanf(word.c_str(), "%u:%lf%n", &width, &ns, &used) != 2 ||
          static_cast<std::size_t>(used) != word.size()) {
        std::getline(words, kernel.name);
        kernel.name = word + kernel.name;
        break;
      }
      if (width == 0 || width > job.sms || !(ns > 0) || !std::isfinite(ns))
        return "'" + word + "' is no width and time";
      profile.merge(1, {width, 100, ns, 0});
    }
    kernel.stretch.assign(job.sms + 1, 1);
    const double whole = profile.predict(1, job.sms).ns;
    if (known.blocks > 0 && whole > 0) {
      for (std::uint32_t m = 1; m <= job.sms; ++m)
        kernel.stretch[m] = static_cast<float>(profile.predict(1, m).ns / whole);
      const double places = std::max(1U, known.resident) * static_cast<double>(job.sms);
      kernel.waves = static_cast<double>(known.blocks) / places;
    }
    job.kernels.push_back(std::move(kernel));
    return "";
  }

  std::string part(std::istringstream& words) {
    RecordedJob::Part part;
    words >> part.name;
    if (part.name == "prefill")
      part.kind = StepKind::kPrefill;
    else if (part.name == "decode")
      part.kind = StepKind::kDecode;
    else if (part.name != "step")
      return "a part is a step, a prefill or a decode";
    part.key = hal::fnv1a(job.name + " " + part.name);
    job.parts.push_back(std::move(part));
    return "";
  }

  std::string operation(std::istringstream& words, RecordedJob::Call call) {
    std::vector<RecordedJob::Operation>& operations = job.parts.back().operations;
    RecordedJob::Operation operation;
    operation.call = call;
    const bool wait = call == RecordedJob::Call::kWait;
    if (!wait && !(words >> operation.of)) return "a number is missing";
    if (std::string wrong = time(words, &operation.host_ns); !wrong.empty()) return wrong;
    if (!wait)
      if (std::string wrong = time(words, &operation.ns); !wrong.empty()) return wrong;
    if (!(words >> operation.after)) return "it is missing what it waits for";
    if (operation.after < (wait ? 0 : -1) ||
        operation.after >= static_cast<std::int64_t>(operations.size()))
      return "it waits for an operation that is not before it";
    if (operation.after >= 0 &&
        operations[static_cast<std::size_t>(operation.after)].call == RecordedJob::Call::kWait)
      return "it waits for a wait";
    if (call == RecordedJob::Call::kKernel && operation.of >= job.kernels.size())
      return "the kernel is unknown";
    operations.push_back(operation);
    return "";
  }
};

}  // namespace

// Blocks come in waves; the last one fills the places that it needs.
double RecordedJob::Kernel::full(double part) const {
  const double all = std::ceil(waves / part);
  return all > 0 ? (all - 1) / all : 0;
}

double RecordedJob::Kernel::share(double part) const {
  if (waves == 0) return 0;
  const double last = waves / part - std::floor(waves / part);
  return last > 0 ? last : 1;
}

hal::Result<RecordedJob> parse_job(std::string_view text) {
  Reader reader;
  std::size_t number = 0;
  auto failed = [&](const std::string& why) {
    return hal::fail(Errc::kInvalidArgument, "line " + std::to_string(number) + ": " + why);
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (++number == 1) {
      if (line != kFirst) return failed("a job's file begins with '" + std::string(kFirst) + "'");
      continue;
    }
    if (line.empty() || line[0] == '#') continue;
    if (const std::string why = reader.line(line); !why.empty()) return failed(why);
  }
  if (const std::string why = reader.finish(); !why.empty()) return failed(why);
  return std::move(reader.job);
}

hal::Result<RecordedJob> read_job(const std::string& path) {
  const auto text = hal::read_file(path);
  if (!text)
    return hal::fail(Errc::kUnavailable, "job " + path + ": " + std::strerror(errno), errno);
  auto job = parse_job(*text);
  if (!job) return hal::fail(job.error().code, "job " + path + ": " + job.error().message);
  return job;
}

}  // namespace vitamin::sim
