#include "coordinator/store/etcd_client.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "coordinator/testing/rereading.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class EtcdClientTest : public Rereading {
 protected:
  std::unique_ptr<EtcdClient> ClientOf(const std::string& member) {
    MakeCertificate("ca");
    MakeCertificate("own");
    EtcdOptions options;
    options.members = {member};
    options.tls = {dir_.File("ca.crt"), dir_.File("own.crt"), dir_.File("own.key")};
    auto client = EtcdClient::Make(options, absl::Now());
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
};

// Closes every connection, as a server does that rejects a certificate.
class ClosingServer {
 public:
  ClosingServer() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      for (int one = 0; (one = accept(listener_, nullptr, nullptr)) >= 0;) close(one);
    });
  }
  ~ClosingServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const std::string& address() const { return address_; }

 private:
  const int listener_;
  std::string address_;
  std::thread thread_;
};

// Regression: the error was gRPC's "Socket closed", and the operator looked for a network failure.
TEST_F(EtcdClientTest, NamesRejectedCertificate) {
  ClosingServer etcd;
  const auto client = ClientOf(etcd.address());
  const absl::Status status = client->TryTxn({}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("; --etcd-cert may have expired, or may not be signed by a CA in etcd's"));
}

// Regression: the error blamed --etcd-cert, which was not set.
TEST_F(EtcdClientTest, AsksForMissingCertificate) {
  ClosingServer etcd;
  MakeCertificate("ca");
  EtcdOptions options;
  options.members = {etcd.address()};
  options.tls.trusted = dir_.File("ca.crt");
  const auto client = EtcdClient::Make(options, absl::Now());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_THAT(std::string((*client)->TryTxn({}).status().message()), HasSubstr("; etcd may require"));
}

TEST_F(EtcdClientTest, NamesExpiredCertificateWithDate) {
  const auto client = ClientOf("127.0.0.1:1");
  EXPECT_THAT(std::string(client->TryTxn({}).status().message()), Not(HasSubstr("TLS")));
  const std::string stem = dir_.File("own");
  ASSERT_NO_FATAL_FAILURE(ReplaceWithExpiredCertificate(stem));
  client->Tls();  // Reads them now.
  EXPECT_THAT(
      std::string(client->TryTxn({}).status().message()),
      HasSubstr("; TLS files for etcd cannot be used: " + stem + ".crt: the certificate has expired, on 20"));
}

// Regression: a slow reader could reinstate older files after newer ones.
TEST_F(EtcdClientTest, SerializesTlsRereads) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("own"));
  EtcdOptions options;
  options.members = {"localhost:1"};
  options.tls.trusted = dir_.File("own.crt");
  const auto client = EtcdClient::Make(options, absl::Now());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_FALSE(EndsDuringAnother(options.tls.trusted, [&] { (*client)->Tls(); }));
}

}  // namespace
}  // namespace fsdpd
