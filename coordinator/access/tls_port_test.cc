#include "coordinator/access/tls_port.h"

#include <absl/time/clock.h>

#include "coordinator/testing/rereading.h"

namespace fsdpd {
namespace {

class TlsPortTest : public Rereading {};

// Regression: a slow reader could restore an older set after a newer one was in use.
TEST_F(TlsPortTest, SetIsInUseBeforeConcurrentRead) {
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("own"));
  const TlsFiles files = {dir_.File("own.crt"), dir_.File("own.crt"), dir_.File("own.key")};
  const auto port = TlsPort::Make(files, Clock::Real());
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_FALSE(EndsDuringAnother(files.key, [&] { (*port)->Newest(); }));
}

}  // namespace
}  // namespace fsdpd
