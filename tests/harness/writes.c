/* LD_PRELOAD library that counts the writes of ranks to checkpoint directories, and injects one error or death, chosen by
   harness/writes.py. FSDPD_WRITES is its directory, FSDPD_WRITTEN the prefix of counted paths.

   A rank's save begins when it creates its own file, __R_0.distcp in iter_STEP. Its writes are numbered from there; one
   thread saves. A file RANK.STEP.NUMBER in the directory has the injected errno, or 0 for SIGKILL. It is removed when it
   is read, so it takes effect once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static long step, number;

static int OwnRank(void) {
  char log[4096] = {0};
  if (readlink("/proc/self/fd/1", log, sizeof(log) - 1) < 0) return -1;
  const char* name = strrchr(log, '/');
  int rank = -1;
  return name != NULL && sscanf(name, "/rank-%d.log", &rank) == 1 ? rank : -1;
}

static int Counts(const char* path) {
  const char* start = getenv("FSDPD_WRITTEN");
  return start != NULL && strncmp(path, start, strlen(start)) == 0;
}

/* Returns whether the write must fail, with errno set. */
static int Fate(const char* name) {
  char text[16] = {0};
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return 0;
  if (syscall(SYS_read, fd, text, sizeof(text) - 1) < 1 || syscall(SYS_unlinkat, AT_FDCWD, name, 0) != 0) abort();
  close(fd);
  if (atoi(text) == 0) kill(getpid(), SIGKILL);
  errno = atoi(text);
  return 1;
}

static int Fails(const char* what, const char* path) {
  if (!Counts(path) || step == 0) return 0;
  const int error = errno, rank = OwnRank();
  char text[8192];
  const int length = snprintf(text, sizeof(text), "%d %ld %ld %s %s\n", rank, step, number, what, path);
  char name[4096];
  snprintf(name, sizeof(name), "%s/log", getenv("FSDPD_WRITES"));
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0 || syscall(SYS_write, fd, text, length) != length) abort();
  close(fd);
  snprintf(name, sizeof(name), "%s/%d.%ld.%ld", getenv("FSDPD_WRITES"), rank, step, number++);
  if (Fate(name)) return 1;
  errno = error;
  return 0;
}

static int FailsTo(const char* what, int fd) {
  char link[64], path[4096] = {0};
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const int error = errno;
  const int known = readlink(link, path, sizeof(path) - 1) > 0;
  errno = error;
  return known && Fails(what, path);
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (flags & O_CREAT && Counts(path)) {
    const char* file = strstr(path, "/__");
    const char* directory = strstr(path, "/iter_");
    long begun = 0;
    if (file != NULL && directory != NULL && sscanf(directory, "/iter_%ld/", &begun) == 1) {
      step = begun;
      number = 0;
    }
    if (Fails("create", path)) return -1;
  }
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (FailsTo("reserve", fd)) return -1;
  return NEXT(fallocate)(fd, mode, offset, length);
}
ssize_t pwritev(int fd, const struct iovec* pieces, int count, off_t offset) {
  if (FailsTo("write", fd)) return -1;
  return NEXT(pwritev)(fd, pieces, count, offset);
}
int fsync(int fd) {
  if (FailsTo("sync", fd)) return -1;
  return NEXT(fsync)(fd);
}
int rename(const char* from, const char* to) {
  if (Fails("rename", to)) return -1;
  return NEXT(rename)(from, to);
}
int unlink(const char* path) {
  if (Fails("unlink", path)) return -1;
  return NEXT(unlink)(path);
}
int rmdir(const char* path) {
  if (Fails("rmdir", path)) return -1;
  return NEXT(rmdir)(path);
}
