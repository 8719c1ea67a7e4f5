// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/interrupts.h"

#include <csignal>
#include <initializer_list>

namespace vitamin::tools {
namespace {

volatile std::sig_atomic_t caught = 0;

void note_signal(int signal) {
  if (caught == 0) caught = signal;
}

// What is ignored stays ignored over exec, what is handled becomes the default.
void set_unless_ignored(std::initializer_list<int> signals, void (*handler)(int)) {
  for (const int signal : signals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = handler;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

void watch_interrupts() { set_unless_ignored({SIGINT, SIGTERM, SIGHUP, SIGQUIT}, &note_signal); }
int interrupted() { return caught; }
void forget_interrupts() { set_unless_ignored({SIGINT, SIGTERM, SIGHUP, SIGQUIT}, SIG_DFL); }

void outlive_failed_writes() {
  set_unless_ignored({SIGPIPE, SIGXFSZ}, [](int) {});
}

}  // namespace vitamin::tools
