// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/trace.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "hal/read_file.h"

namespace vitamin::sim {
namespace {

using hal::Errc;

constexpr std::string_view kHeader = "t_s,prompt_tokens,output_tokens";
constexpr std::string_view kPace = ",host_pace";

template <class T>
bool number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// What is wrong with the line, or "".
std::string read_line(std::string_view line, ServiceRequest* request, double last_s, bool paced) {
  if (paced) {
    const std::size_t last = std::min(line.rfind(','), line.size());
    if (!number(line.substr(std::min(last + 1, line.size())), &request->host_pace) ||
        !(request->host_pace > 0 && request->host_pace < 1000))
      return "the pace of the host must be above 0";
    line = line.substr(0, last);
  }
  const std::size_t first = line.find(','), second = line.find(',', first + 1);
  if (first == line.npos || second == line.npos) return "a field is missing";
  const std::string_view fields[] = {
      line.substr(0, first), line.substr(first + 1, second - first - 1), line.substr(second + 1)};
  for (const std::string_view field : fields)
    if (field.empty()) return "a field is empty";
  if (!number(fields[0], &request->at_s) || !std::isfinite(request->at_s))
    return "'" + std::string(fields[0]) + "' is no time in seconds";
  if (request->at_s < 0) return "the time is negative";
  if (request->at_s < last_s) return "the time is before that of the line above";
  if (!number(fields[1], &request->prompt_tokens) || !number(fields[2], &request->output_tokens))
    return "token counts must be whole numbers, 0 or more";
  if (request->prompt_tokens == 0) return "a request of no prompt tokens";
  return "";
}

}  // namespace

double RequestTrace::span_s() const { return requests.empty() ? 0 : requests.back().at_s; }

double RequestTrace::scale_to(double requests_per_s) {
  const double span = span_s();
  if (span <= 0 || requests_per_s <= 0) return 1;
  const double factor = static_cast<double>(requests.size()) / span / requests_per_s;
  for (ServiceRequest& request : requests) request.at_s *= factor;
  return factor;
}

hal::Result<RequestTrace> parse_trace(std::string_view text, const TraceWindow& window) {
  RequestTrace trace;
  std::size_t number_of_line = 0;
  double last_s = 0;
  bool paced = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_of_line;
    auto failed = [&](const std::string& why) {
      return hal::fail(Errc::kInvalidArgument,
                       "line " + std::to_string(number_of_line) + ": " + why);
    };
    if (number_of_line == 1) {
      paced = line.ends_with(kPace);
      if (paced) line.remove_suffix(kPace.size());
      if (line != kHeader) return failed("the header must be " + std::string(kHeader));
      continue;
    }
    if (line.empty()) continue;
    ServiceRequest request;
    if (const std::string why = read_line(line, &request, last_s, paced); !why.empty())
      return failed(why);
    last_s = request.at_s;
    if (request.at_s < window.from_s) continue;
    if (window.seconds > 0 && request.at_s >= window.from_s + window.seconds) continue;
    request.at_s -= window.from_s;
    // One token is the least that a request can produce.
    const std::uint32_t output = std::max(1U, request.output_tokens);
    const std::uint32_t prompt = request.prompt_tokens;
    request.prompt_tokens = std::min(prompt, window.most_prompt_tokens);
    request.output_tokens = std::min(output, window.most_output_tokens);
    if (request.prompt_tokens != prompt || request.output_tokens != output) ++trace.cut;
    trace.requests.push_back(request);
  }
  if (trace.requests.empty())
    return hal::fail(Errc::kInvalidArgument, "there is no request in the window");
  return trace;
}

hal::Result<RequestTrace> read_trace(const std::string& path, const TraceWindow& window) {
  const auto text = hal::read_file(path);
  if (!text)
    return hal::fail(Errc::kUnavailable, "trace " + path + ": " + std::strerror(errno), errno);
  auto trace = parse_trace(*text, window);
  if (!trace) return hal::fail(trace.error().code, "trace " + path + ": " + trace.error().message);
  return trace;
}

}  // namespace vitamin::sim
