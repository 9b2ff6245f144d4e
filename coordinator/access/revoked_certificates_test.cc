#include "coordinator/access/revoked_certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RevokedCertificates, ParsesSerialsAsOpensslPrintsThem) {
  const absl::StatusOr<Serials> serials =
      ParseSerials("# lost 2026-11-20\nserial=0AFF\n\n 01:b2:C3  # node-1\n");
  ASSERT_TRUE(serials.ok()) << serials.status();
  EXPECT_THAT(*serials, ElementsAre("01B2C3", "0AFF"));
  EXPECT_EQ(*ParseSerials("0aff\n1b2c3"), *serials) << "in either case, with or without a leading zero";
  for (const char* line : {"node-1", "0x12", "serial=", "00", "12 34"}) {
    const absl::Status refused = ParseSerials(std::string("ab\n") + line).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << line;
    EXPECT_THAT(refused.message(), HasSubstr("line 2: invalid serial number"));
  }
}

class RevokedCertificatesTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) {
    const std::string half = path_ + ".tmp";
    std::ofstream(half) << text;
    ASSERT_EQ(rename(half.c_str(), path_.c_str()), 0);
  }

  const TempDir dir_;
  const std::string path_ = dir_.File("revoked");
};

TEST_F(RevokedCertificatesTest, AddedLineAppliesAtNextCheck) {
  Write("# none\n");
  auto revoked = RevokedCertificates::Open(path_, Clock::Real());
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  EXPECT_FALSE((*revoked)->Has("AB"));
  Write("ab\ncd\n");
  EXPECT_TRUE((*revoked)->Has("AB"));
  EXPECT_EQ((*revoked)->size(), 2u);
  Write("cd\n");
  EXPECT_FALSE((*revoked)->Has("AB"));
}

TEST_F(RevokedCertificatesTest, InvalidFileKeepsPreviousList) {
  Write("ab\n");
  auto revoked = RevokedCertificates::Open(path_, Clock::Real());
  ASSERT_TRUE(revoked.ok()) << revoked.status();
  for (const char* text : {"", "typo\n"}) {
    Write(text);
    EXPECT_TRUE((*revoked)->Has("AB")) << text;
    EXPECT_TRUE((*revoked)->Stale());
  }
  unlink(path_.c_str());
  EXPECT_TRUE((*revoked)->Has("AB"));
  EXPECT_TRUE((*revoked)->Stale());
  Write("ab\n");
  EXPECT_FALSE((*revoked)->Stale());
  EXPECT_FALSE(RevokedCertificates::Open(dir_.File("other"), Clock::Real()).ok());
}

// Regression: a restart accepted every revoked certificate again.
TEST_F(RevokedCertificatesTest, RejectsEmptyFileAtStart) {
  Write("");
  EXPECT_THAT(RevokedCertificates::Open(path_, Clock::Real()).status().message(),
              HasSubstr("is empty; write a comment (#) if no certificate is revoked"));
  Write("# none\n");
  EXPECT_TRUE(RevokedCertificates::Open(path_, Clock::Real()).ok());
}

}  // namespace
}  // namespace fsdpd
