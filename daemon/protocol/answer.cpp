// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/answer.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/protocol/handshake.h"
#include "daemon/protocol/socket.h"

namespace vitamin::protocol {
namespace {

constexpr off_t kTextMax = 1 << 30;

tl::unexpected<hal::Error> answer_failed(const char* what) {
  return hal::fail(hal::Errc::kInternal, std::string(what) + " (" + std::strerror(errno) + ")",
                   errno);
}

hal::Result<Fd> in_memory(std::string_view text) {
  Fd fd(::memfd_create("vitamin-answer", MFD_CLOEXEC));
  if (!fd) return answer_failed("no memory for an answer can be made");
  while (!text.empty()) {
    const ssize_t written = ::write(fd.get(), text.data(), text.size());
    if (written < 0) return answer_failed("an answer cannot be written");
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return fd;
}

hal::Result<std::string> text_of(const Fd& fd) {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size > kTextMax)
    return hal::fail(hal::Errc::kInternal, "vitamind's answer cannot be read");
  std::string text(static_cast<std::size_t>(facts.st_size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got = ::pread(fd.get(), &text[at], text.size() - at, static_cast<off_t>(at));
    if (got <= 0) return answer_failed("vitamind's answer cannot be read");
    at += static_cast<std::size_t>(got);
  }
  return text;
}

}  // namespace

hal::Status send_answer(const Fd& socket, std::string_view text) {
  Preamble preamble;
  preamble.kind = MessageKind::kAnswer;
  if (sizeof preamble + text.size() > kMessageMax) {
    const auto memory = in_memory(text);
    if (!memory) return tl::unexpected(memory.error());
    const int fds[] = {memory->get()};
    return send_message(socket, bytes_of(preamble), fds);
  }
  return send_answer(socket, text, {});
}

hal::Status send_answer(const Fd& socket, std::string_view text, std::span<const int> files) {
  Preamble preamble;
  preamble.kind = MessageKind::kAnswer;
  std::string message(reinterpret_cast<const char*>(&preamble), sizeof preamble);
  message += text;
  return send_message(socket, std::as_bytes(std::span(message)), files);
}

hal::Result<std::string> ask(const std::string& path, std::string_view verb,
                             std::chrono::milliseconds time_limit) {
  const auto told = ask_for_files(path, verb, time_limit);
  if (!told) return tl::unexpected(told.error());
  return told->files.empty() ? told->text : text_of(told->files.front());
}

hal::Result<Told> ask_for_files(const std::string& path, std::string_view verb,
                                std::chrono::milliseconds time_limit) {
  const auto connection = connect_to(path, time_limit);
  if (!connection) return tl::unexpected(connection.error());
  Control control;
  control.preamble.kind = MessageKind::kControl;
  control.verb.set(verb);
  auto parcel = exchange(*connection, bytes_of(control), kMessageMax, time_limit);
  if (!parcel) return tl::unexpected(parcel.error());
  const std::span<const std::byte> bytes = parcel->bytes;
  Preamble preamble;
  if (bytes.size() < sizeof preamble)
    return hal::fail(hal::Errc::kUnavailable, "vitamind closed the connection");
  std::memcpy(&preamble, bytes.data(), sizeof preamble);
  if (preamble.kind != MessageKind::kAnswer || preamble.major != kMajor) {
    const auto refused = parse<Welcome>(bytes);  // says what it is instead
    return hal::fail(hal::Errc::kUnsupported,
                     refused ? "vitamind answered something else" : refused.error().message);
  }
  return Told{std::string(reinterpret_cast<const char*>(bytes.data()) + sizeof preamble,
                          bytes.size() - sizeof preamble),
              std::move(parcel->fds)};
}

}  // namespace vitamin::protocol
