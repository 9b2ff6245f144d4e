#include "coordinator/store/etcd_client.h"

#include <absl/time/clock.h>

#include "coordinator/testing/rereading.h"

namespace fsdpd {
namespace {

class EtcdClientTest : public Rereading {};

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
