/* LD_PRELOAD library that kills a coordinator, as by kill -9, at a point chosen by harness/deaths.py. FSDPD_DEATHS is a
   directory. The process dies before a file write that contains the text of its file `unwritten`, or after a log line that
   contains the text of `written`. The file is removed when it matches, so it takes effect once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void DieWhere(const char* which, const void* data, size_t bytes) {
  char path[4096], text[512] = {0};
  snprintf(path, sizeof(path), "%s/%s", getenv("FSDPD_DEATHS"), which);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  const long length = syscall(SYS_read, fd, text, sizeof(text) - 1);
  close(fd);
  if (length < 1 || memmem(data, bytes, text, (size_t)length) == NULL) return;
  if (unlink(path) != 0) abort();
  kill(getpid(), SIGKILL);
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  DieWhere("unwritten", data, bytes);
  return NEXT(pwrite64)(fd, data, bytes, offset);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  DieWhere("unwritten", data, bytes);
  return NEXT(pwrite)(fd, data, bytes, offset);
}

size_t fwrite(const void* data, size_t size, size_t count, FILE* file) {
  const size_t written = NEXT(fwrite)(data, size, count, file);
  if (file == stderr) DieWhere("written", data, size * count);
  return written;
}
