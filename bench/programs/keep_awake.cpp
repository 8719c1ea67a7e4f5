// SPDX-License-Identifier: Apache-2.0
//
// keep_awake FIRST-LAST: gives each of these processors, counted among those that it may use,
// something to do, of the least priority, until its standard input ends. What really wants to run
// takes the processor at once, and finds it awake.
#include <immintrin.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

int main(int argc, char** argv) {
  unsigned first = 0, last = 0;
  if (argc != 2 || std::sscanf(argv[1], "%u-%u", &first, &last) != 2 || last < first) {
    std::fprintf(stderr, "usage: keep_awake FIRST-LAST\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  unsigned number = 0;
  for (unsigned core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    const unsigned place = number++;
    if (place < first || place > last) continue;
    std::thread([core] {
      cpu_set_t mine;
      CPU_ZERO(&mine);
      CPU_SET(core, &mine);
      const sched_param least{};
      // Not there, or not allowed: it sleeps as it would without us.
      if (sched_setaffinity(0, sizeof mine, &mine) != 0 ||
          sched_setscheduler(0, SCHED_IDLE, &least) != 0)
        return;
      for (;;) _mm_pause();
    }).detach();
  }
  char byte = 0;
  while (read(0, &byte, 1) > 0) {
  }
  _exit(0);
}
