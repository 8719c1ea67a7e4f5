// SPDX-License-Identifier: Apache-2.0
//
// What a rule is written with: a context with kernels in it, gates that hold a stream until the
// host says so, and questions whose answers do not depend on speed.
//
// A gate is a value wait on a word of pinned host memory: work behind it cannot run before the host
// stores the word, on any driver. So "still pending" is certain. "Not pending" is a matter of
// time: the answer is asked for again until it is yes, or timeout() has passed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "driver.h"

namespace vitamin::differential {

inline const char* yes_no(bool value) { return value ? "yes" : "no"; }

// "600 NOT_READY": the number decides, the name is for the reader.
std::string code(CUresult result);

// One line of the trace: Say{"query {}, {} nodes", code(result), count}. Nothing in it may depend
// on time, addresses or the machine. A type with a constructor, not a function, because the answers
// that it prints must be asked for in the order in which they are written, and only braces promise
// that.
class Say {
 public:
  template <class... Values>
  explicit Say(std::string_view format, const Values&... values) {
    print(format, {text(values)...});
  }

 private:
  static std::string text(const std::string& value) { return value; }
  static std::string text(const char* value) { return value; }
  template <class Integer>
    requires std::is_integral_v<Integer>
  static std::string text(Integer value) {
    return std::to_string(value);
  }
  static void print(std::string_view format, const std::vector<std::string>& values);
};

std::chrono::milliseconds timeout();

// Throws when a step that every driver must manage fails: the rule cannot ask its question.
void must(CUresult result, const char* what);
#define VITAMIN_MUST(call) ::vitamin::differential::must(api.call, #call)

struct Rule {
  const char* name;
  const char* question;
  void (*run)();
};
std::vector<Rule>& rules();
struct RegisterRule {
  RegisterRule(const char* name, const char* question, void (*run)()) {
    rules().push_back({name, question, run});
  }
};
#define VITAMIN_RULE(name, question)                                                  \
  static void rule_##name();                                                          \
  static const ::vitamin::differential::RegisterRule register_##name(#name, question, \
                                                                     &rule_##name);   \
  static void rule_##name()

// 32-bit words that the kernel store_of_many takes by value.
inline constexpr std::size_t kLargeParameterWords = 1000;

// The primary context of a device, current on this thread, with the kernels of kernels/ loaded.
// Objects that it hands out live until the process ends: each rule is a process of its own. They
// are made in the current context, which is that of the last session made unless told otherwise.
// A rule that asks for a device that the machine does not have is not answered.
class Session {
 public:
  explicit Session(int ordinal = 0);

  CUstream stream(unsigned flags = CU_STREAM_DEFAULT, int priority = 0);
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING);
  CUdeviceptr memory(std::size_t bytes);
  std::uint32_t* pinned(std::size_t bytes);
  CUfunction function(const char* name) const;
  CUkernel kernel(const char* name) const;
  // A green context over the given groups of one split of the device, and its streams.
  CUgreenCtx green(std::initializer_list<unsigned> groups);
  CUstream green_stream(CUgreenCtx context, int priority = 0);
  unsigned group_count();
  unsigned processors_of_group(unsigned group);
  const std::vector<char>& image() const { return image_; }
  CUmodule module() const { return module_; }
  // A word of pinned memory for a gate; from one allocation, so that it can be had while streams
  // are held.
  std::uint32_t* gate_word();

  CUdevice device() const { return device_; }
  CUcontext primary() const { return primary_; }

 private:
  void split();
  CUdevice device_ = 0;
  CUcontext primary_ = nullptr;
  std::vector<char> image_;
  CUmodule module_ = nullptr;
  CUlibrary library_ = nullptr;
  std::vector<CUdevResource> groups_;
  std::uint32_t* gate_words_ = nullptr;
  unsigned gate_words_used_ = 0;
};

// How a launch names its stream: the handle, through the plain or the per-thread entry point.
struct Door {
  const char* name;
  CUstream stream;
  bool per_thread = false;

  CUresult query() const;
  CUresult synchronize() const;
  CUresult record(CUevent event) const;
  CUresult wait(CUevent event) const;
  CUresult launch(CUfunction function, void** parameters) const;
};

CUresult launch(CUfunction function, CUstream stream, std::initializer_list<const void*> parameters,
                unsigned grid = 1, unsigned block = 1, unsigned shared_bytes = 0);

// Device words that kernels append to; says in which order kernels ran.
class Log {
 public:
  explicit Log(Session& session);
  CUresult append(CUstream stream, std::uint32_t value) const;
  CUresult append(const Door& door, std::uint32_t value) const;
  CUdeviceptr words() const { return words_; }
  CUfunction function() const { return append_; }
  // "1 2 3", read on a non-blocking stream of its own.
  std::string text() const;

 private:
  CUfunction append_;
  CUdeviceptr words_;
  std::uint32_t* copy_;
  CUstream reader_;
};

// Holds `stream` from construction until open() (or destruction).
class Gate {
 public:
  Gate(Session& session, CUstream stream);
  explicit Gate(Session& session);  // put() later, on one or more streams
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void put(CUstream stream);
  CUresult put_ptsz(CUstream stream);
  void open();
  bool is_open() const;

 private:
  volatile std::uint32_t* word_;
  CUdeviceptr address_ = 0;
};

// Asks until the answer is not NOT_READY or the time-out has passed; the last answer.
CUresult soon(const std::function<CUresult()>& ask);
std::string soon(CUstream stream);
std::string soon(CUevent event);
std::string now(CUstream stream);
std::string now(CUevent event);

// Makes `call` on this thread. "returns 0" when it came back while the gate was closed, else "waits
// for the gate, then 0" (the gate is opened from another thread once the time-out has passed).
std::string waits_for(Gate& gate, const std::function<CUresult()>& call);

// Everything on every stream of the primary context, then the trace may go on.
void drain();

}  // namespace vitamin::differential
