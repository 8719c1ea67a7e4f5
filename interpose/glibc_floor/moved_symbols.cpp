// SPDX-License-Identifier: Apache-2.0
//
// Functions that glibc 2.34 moved from libdl and libpthread into libc, for the linker to find where
// they were before. Never loaded: a library that links these stubs (glibc_floor.cmake) asks at run
// time for the real libdl.so.2 and libpthread.so.0, which every glibc has.
#define STANDS_FOR(name) \
  extern "C" __attribute__((visibility("default"))) void name() {}

#ifdef VITAMIN_FLOOR_LIBDL
STANDS_FOR(dladdr)
STANDS_FOR(dlclose)
STANDS_FOR(dlerror)
STANDS_FOR(dlinfo)
STANDS_FOR(dlopen)
STANDS_FOR(dlsym)
STANDS_FOR(dlvsym)
#else
STANDS_FOR(__pthread_key_create)
STANDS_FOR(pthread_create)
STANDS_FOR(pthread_detach)
STANDS_FOR(pthread_getcpuclockid)
STANDS_FOR(pthread_getspecific)
STANDS_FOR(pthread_join)
STANDS_FOR(pthread_key_create)
STANDS_FOR(pthread_key_delete)
STANDS_FOR(pthread_mutex_trylock)
STANDS_FOR(pthread_once)
STANDS_FOR(pthread_rwlock_rdlock)
STANDS_FOR(pthread_rwlock_unlock)
STANDS_FOR(pthread_rwlock_wrlock)
STANDS_FOR(pthread_setname_np)
STANDS_FOR(pthread_setspecific)
STANDS_FOR(pthread_sigmask)
#endif
