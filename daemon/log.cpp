// SPDX-License-Identifier: Apache-2.0
#include "daemon/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/json_text.h"

namespace vitamin::daemon::log {

namespace {

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    using std::chrono::microseconds;
    const auto since = std::chrono::duration_cast<microseconds>(message.time.time_since_epoch());
    const auto seconds = static_cast<std::time_t>(since.count() / 1'000'000);
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    const std::string text(message.payload.data(), message.payload.size());
    const auto level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json line = {
        {"ts", fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                           parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
                           parts.tm_sec, since.count() % 1'000'000)},
        {"level", std::string(level.data(), level.size())},
        {"process", ::getpid()},
        {"text", text}};
    const std::size_t code = text.rfind(" [VIT-");
    if (code != text.npos && text.back() == ']') {
      line["code"] = text.substr(code + 2, text.size() - code - 3);
      line["text"] = text.substr(0, code);
    }
    const std::string json = json_text(line) + "\n";
    out.append(json.data(), json.data() + json.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

spdlog::level::level_enum level_of(Level level) {
  switch (level) {
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

void start(Format format, Level least) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("vitamind"));
  if (format == Format::kJson)
    spdlog::default_logger()->set_formatter(std::make_unique<JsonFormatter>());
  else
    spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %n %^%l%$ %v");
  spdlog::set_level(level_of(least));
}

void write(Level level, std::string_view text) { spdlog::log(level_of(level), "{}", text); }

}  // namespace vitamin::daemon::log
