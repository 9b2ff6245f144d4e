// Test fixture: an etcd cluster of one member on loopback, with its data in a temporary directory. A test can
// kill it, suspend it (it keeps its connections and does not answer), and restart it on the same port and
// data.
//
// Requires Debian's etcd-server (third_party/debian.txt). Used by one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/temp_dir.h"

namespace fsdpd {

class EtcdServer {
 public:
  // Starts etcd; the test fails if it does not answer. `quota_bytes`: backend quota; 0: etcd's default.
  explicit EtcdServer(int64_t quota_bytes = 0);
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  std::string address() const;  // "127.0.0.1:PORT"
  void Kill();
  void Start();
  void Pause();
  void Continue();

 private:
  const TempDir dir_;
  const int64_t quota_bytes_;
  const int port_, peer_port_;
  pid_t pid_ = -1;
};

}  // namespace fsdpd
