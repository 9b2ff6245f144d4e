// For tests: an etcd of one member on loopback, with its data in a directory that goes with it. It can be
// killed, be stopped (it keeps its connections and says nothing), and be started again on the same port and
// data.
//
// Needs Debian's etcd-server (third_party/debian.txt). One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/temp_dir.h"

namespace fsdpd {

class EtcdServer {
 public:
  // Started; the test fails where it does not answer. `quota_bytes`: of its data; 0: etcd's own.
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
