#include "coordinator/testing/etcd_server.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "coordinator/store/etcd_client.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(60);

// A port that was free a moment ago, because etcd does not report a port that it picked itself.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  close(fd);
  EXPECT_TRUE(bound);
  return ntohs(address.sin_port);
}

}  // namespace

EtcdServer::EtcdServer(int64_t quota_bytes)
    : quota_bytes_(quota_bytes), port_(FreePort()), peer_port_(FreePort()) {
  Start();
}

EtcdServer::~EtcdServer() { Kill(); }

std::string EtcdServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

void EtcdServer::Start() {
  const std::string client = absl::StrCat("http://", address());
  const std::string peer = absl::StrCat("http://127.0.0.1:", peer_port_);
  const std::string log = dir_.File("etcd.log");
  std::vector<std::string> words = {"etcd",
                                    "--data-dir=" + dir_.File("data"),
                                    "--listen-client-urls=" + client,
                                    "--advertise-client-urls=" + client,
                                    "--listen-peer-urls=" + peer,
                                    "--initial-advertise-peer-urls=" + peer,
                                    "--initial-cluster=default=" + peer,
                                    "--logger=zap",
                                    "--log-outputs=" + log};
  if (quota_bytes_ > 0) words.push_back(absl::StrCat("--quota-backend-bytes=", quota_bytes_));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  const auto etcd = EtcdClient::Make({{address()}, {}}, absl::Now());
  ASSERT_TRUE(etcd.ok());
  etcdserverpb::RangeRequest request;
  request.set_key("a");
  const absl::Time until = absl::Now() + kStartLimit;
  while (!(*etcd)->Range(request).ok()) {
    ASSERT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << "etcd ended; is etcd-server installed (deploy/setup)?";
    ASSERT_LT(absl::Now(), until) << "etcd does not answer";
  }
}

void EtcdServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

void EtcdServer::Pause() { kill(pid_, SIGSTOP); }
void EtcdServer::Continue() { kill(pid_, SIGCONT); }

}  // namespace fsdpd
