#include "tests/sim/faulty_disk.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace fsdpd::sim {
namespace {

FaultyDisk* current_disk = nullptr;  // Global, because SQLite's VFS callbacks of files have no context.
sqlite3_vfs* real_vfs = nullptr;
sqlite3_vfs faulty_vfs = {};

}  // namespace

// The VFS's file, followed in memory by the file of the real VFS.
struct DiskFile {
  sqlite3_file base;
  FaultyDisk::Pending* pending;

  static DiskFile* Of(sqlite3_file* file) { return reinterpret_cast<DiskFile*>(file); }
  static sqlite3_file* Real(sqlite3_file* file) { return reinterpret_cast<sqlite3_file*>(Of(file) + 1); }

  static int Close(sqlite3_file* f) { return Real(f)->pMethods->xClose(Real(f)); }
  static int Read(sqlite3_file* f, void* to, int n, sqlite3_int64 at) {
    return Real(f)->pMethods->xRead(Real(f), to, n, at);
  }
  static int Write(sqlite3_file* f, const void* from, int n, sqlite3_int64 at);
  static int Truncate(sqlite3_file* f, sqlite3_int64 size);
  static int Sync(sqlite3_file* f, int flags);
  static int FileSize(sqlite3_file* f, sqlite3_int64* size) {
    return Real(f)->pMethods->xFileSize(Real(f), size);
  }
  static int Lock(sqlite3_file* f, int lock) { return Real(f)->pMethods->xLock(Real(f), lock); }
  static int Unlock(sqlite3_file* f, int lock) { return Real(f)->pMethods->xUnlock(Real(f), lock); }
  static int CheckReservedLock(sqlite3_file* f, int* held) {
    return Real(f)->pMethods->xCheckReservedLock(Real(f), held);
  }
  static int FileControl(sqlite3_file* f, int op, void* arg) {
    return Real(f)->pMethods->xFileControl(Real(f), op, arg);
  }
  static int SectorSize(sqlite3_file* f) { return Real(f)->pMethods->xSectorSize(Real(f)); }
  // No guarantee that a write leaves its neighboring bytes intact.
  static int DeviceCharacteristics(sqlite3_file*) { return 0; }
  static int ShmMap(sqlite3_file* f, int page, int size, int extend, void volatile** to) {
    return Real(f)->pMethods->xShmMap(Real(f), page, size, extend, to);
  }
  static int ShmLock(sqlite3_file* f, int at, int n, int flags) {
    return Real(f)->pMethods->xShmLock(Real(f), at, n, flags);
  }
  static void ShmBarrier(sqlite3_file* f) { Real(f)->pMethods->xShmBarrier(Real(f)); }
  static int ShmUnmap(sqlite3_file* f, int remove) { return Real(f)->pMethods->xShmUnmap(Real(f), remove); }

  static int Open(sqlite3_vfs*, sqlite3_filename name, sqlite3_file* f, int flags, int* out);
  static int Delete(sqlite3_vfs*, const char* name, int sync);
};

namespace {

const sqlite3_io_methods* Methods() {
  static const sqlite3_io_methods methods = [] {
    sqlite3_io_methods m = {};
    m.iVersion = 2;
    m.xClose = DiskFile::Close;
    m.xRead = DiskFile::Read;
    m.xWrite = DiskFile::Write;
    m.xTruncate = DiskFile::Truncate;
    m.xSync = DiskFile::Sync;
    m.xFileSize = DiskFile::FileSize;
    m.xLock = DiskFile::Lock;
    m.xUnlock = DiskFile::Unlock;
    m.xCheckReservedLock = DiskFile::CheckReservedLock;
    m.xFileControl = DiskFile::FileControl;
    m.xSectorSize = DiskFile::SectorSize;
    m.xDeviceCharacteristics = DiskFile::DeviceCharacteristics;
    m.xShmMap = DiskFile::ShmMap;
    m.xShmLock = DiskFile::ShmLock;
    m.xShmBarrier = DiskFile::ShmBarrier;
    m.xShmUnmap = DiskFile::ShmUnmap;
    return m;
  }();
  return &methods;
}

}  // namespace

int DiskFile::Open(sqlite3_vfs*, sqlite3_filename name, sqlite3_file* f, int flags, int* out) {
  f->pMethods = nullptr;
  if (current_disk->dead_) return SQLITE_CANTOPEN;
  const int rc = real_vfs->xOpen(real_vfs, name, Real(f), flags, out);
  if (rc != SQLITE_OK) return rc;
  Of(f)->pending = name == nullptr ? nullptr : current_disk->Of(name);
  f->pMethods = Methods();
  return SQLITE_OK;
}

int DiskFile::Delete(sqlite3_vfs*, const char* name, int) {
  return current_disk->dead_ ? SQLITE_IOERR_DELETE : real_vfs->xDelete(real_vfs, name, 0);
}

int DiskFile::Write(sqlite3_file* f, const void* from, int n, sqlite3_int64 at) {
  if (current_disk->full_ && !current_disk->dead_) return SQLITE_FULL;
  if (!current_disk->CountOperation()) return SQLITE_IOERR_WRITE;
  if (Of(f)->pending != nullptr) {
    FaultyDisk::Write write;
    write.offset = at;
    write.bytes.assign(static_cast<const char*>(from), static_cast<size_t>(n));
    sqlite3_int64 size = 0;
    FileSize(f, &size);
    write.size_before = size;
    write.before.resize(static_cast<size_t>(std::clamp<int64_t>(size - at, 0, n)));
    if (!write.before.empty()) Read(f, write.before.data(), static_cast<int>(write.before.size()), at);
    Of(f)->pending->writes.push_back(std::move(write));
  }
  return Real(f)->pMethods->xWrite(Real(f), from, n, at);
}

int DiskFile::Truncate(sqlite3_file* f, sqlite3_int64 size) {
  if (!current_disk->CountOperation()) return SQLITE_IOERR_TRUNCATE;
  sqlite3_int64 before = 0;
  FileSize(f, &before);
  if (Of(f)->pending != nullptr && before > size) {
    FaultyDisk::Write truncation;
    truncation.offset = size;
    truncation.size_before = before;
    truncation.before.resize(static_cast<size_t>(before - size));
    Read(f, truncation.before.data(), static_cast<int>(truncation.before.size()), size);
    Of(f)->pending->writes.push_back(std::move(truncation));
  }
  return Real(f)->pMethods->xTruncate(Real(f), size);
}

// Only marks the writes as durable: the real disk is not synced.
int DiskFile::Sync(sqlite3_file* f, int) {
  if (!current_disk->CountOperation()) return SQLITE_IOERR_FSYNC;
  if (Of(f)->pending != nullptr) Of(f)->pending->writes.clear();
  return SQLITE_OK;
}

FaultyDisk::FaultyDisk(World* world) : world_(world) {
  FSDPD_CHECK(current_disk == nullptr);
  current_disk = this;
  if (real_vfs == nullptr) {
    real_vfs = sqlite3_vfs_find(nullptr);
    faulty_vfs = *real_vfs;
    faulty_vfs.zName = "fsdpd-simulated";
    faulty_vfs.szOsFile = static_cast<int>(sizeof(DiskFile)) + real_vfs->szOsFile;
    faulty_vfs.xOpen = DiskFile::Open;
    faulty_vfs.xDelete = DiskFile::Delete;
  }
  sqlite3_vfs_register(&faulty_vfs, /*makeDflt=*/1);
}

FaultyDisk::~FaultyDisk() {
  sqlite3_vfs_unregister(&faulty_vfs);
  sqlite3_vfs_register(real_vfs, /*makeDflt=*/1);
  current_disk = nullptr;
}

FaultyDisk::Pending* FaultyDisk::Of(const char* path) {
  for (Pending& file : files_) {
    if (file.path == path) return &file;
  }
  files_.push_back({path, {}});
  return &files_.back();
}

void FaultyDisk::DieAfter(int operations, std::function<void()> died) {
  operations_left_ = operations;
  died_ = std::move(died);
}

bool FaultyDisk::CountOperation() {
  if (!dead_ && operations_left_ > 0 && --operations_left_ == 0) {
    Die();
    died_();
  }
  return !dead_;
}

void FaultyDisk::Die() {
  dead_ = true;
  operations_left_ = -1;
}

void FaultyDisk::Settle(Pending* pending) {
  const int fd = open(pending->path.c_str(), O_RDWR | O_CLOEXEC);
  const int durable = world_->dice.Below(static_cast<int>(pending->writes.size()) + 1);
  while (fd >= 0 && static_cast<int>(pending->writes.size()) > durable) {
    const Write& write = pending->writes.back();
    FSDPD_CHECK(pwrite(fd, write.before.data(), write.before.size(), write.offset) ==
                static_cast<ssize_t>(write.before.size()));
    FSDPD_CHECK(ftruncate(fd, write.size_before) == 0);
    const bool torn = static_cast<int>(pending->writes.size()) == durable + 1 && !write.bytes.empty();
    if (torn && world_->dice.OneIn(2)) {
      const size_t part = static_cast<size_t>(world_->dice.Below(static_cast<int>(write.bytes.size())));
      FSDPD_CHECK(pwrite(fd, write.bytes.data(), part, write.offset) == static_cast<ssize_t>(part));
    }
    pending->writes.pop_back();
  }
  pending->writes.clear();
  if (fd >= 0) close(fd);
}

void FaultyDisk::Revive() {
  for (Pending& file : files_) {
    Settle(&file);
    unlink((file.path + "-shm").c_str());
  }
  files_.clear();
  dead_ = false;
}

}  // namespace fsdpd::sim
