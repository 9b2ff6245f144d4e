/* LD_PRELOAD library that makes a rank sleep for FSDPD_STEP_MS milliseconds after each step report. A step of a tiny
   model takes 5 ms. Without the pause, a job of 60 steps could end before a test acts on it, and an endless job would
   take CPU time that other tests need.

   A report is a frame (base/rank/frame.h) with RankToAgent.step (proto/fsdpd/v1/rank.proto), whose tag follows the length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH_BYTES = 4, STEP_TAG = 2 << 3 | 2 };

ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  ssize_t (*const next)(int, const void*, size_t, int) = (ssize_t(*)(int, const void*, size_t, int))dlsym(RTLD_NEXT, "send");
  const ssize_t sent = next(fd, bytes, size, flags);
  if (size > LENGTH_BYTES && ((const unsigned char*)bytes)[LENGTH_BYTES] == STEP_TAG) {
    const char* milliseconds = getenv("FSDPD_STEP_MS");
    if (milliseconds != NULL) usleep(1000 * atoi(milliseconds));
  }
  return sent;
}
