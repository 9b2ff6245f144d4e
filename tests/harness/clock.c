// LD_PRELOAD library that shifts a process's date by FSDPD_CLOCK_SHIFT_S seconds. Monotonic clocks are not changed.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t shift(void) {
  const char *text = getenv("FSDPD_CLOCK_SHIFT_S");
  return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME) now->tv_sec += shift();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  const int failed = (int)syscall(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += shift();
  return failed;
}

time_t time(time_t *now) {
  struct timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  if (now) *now = real.tv_sec;
  return real.tv_sec;
}
