#include "base/net/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "base/log.h"
#include "base/temp_dir.h"
#include "base/testing/certificate.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  // A self-signed certificate.
  void Make(const std::string& name, const std::string& subject, const std::string& more = "") {
    MakeCertificate(dir_.File(name), subject, more);
  }
  void Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::ofstream(dir_.File(name)) << text;
    ASSERT_EQ(chmod(dir_.File(name).c_str(), mode), 0);
  }
  void Append(const std::string& from, const std::string& to) {
    std::ofstream(dir_.File(to), std::ios::app) << std::ifstream(dir_.File(from)).rdbuf();
  }
  // The number of warnings that are logged if the files are read again and again.
  static int WarningsOf(const std::vector<TlsIdentity>& reads) {
    int warnings = 0;
    std::string last;
    TakeLog([&](Severity severity, absl::string_view) {
      if (severity == Severity::kWarning) ++warnings;
    });
    for (const TlsIdentity& read : reads) LogTlsWarning(read, &last);
    TakeLog(nullptr);
    return warnings;
  }
  absl::StatusOr<TlsIdentity> Read(const std::string& name, const std::string& key) {
    return ReadTlsFiles({dir_.File("ca.crt"), dir_.File(name + ".crt"), dir_.File(key + ".key")}, now_);
  }
  std::string WhyNot(const std::string& name, const std::string& key) {
    return std::string(Read(name, key).status().message());
  }

  const TempDir dir_;
  // The certificate is created after this, with a resolution of seconds.
  absl::Time now_ = absl::Now() + absl::Hours(1);
};

TEST_F(TlsFilesTest, ReadsAValidSet) {
  Make("ca", "/CN=authority");
  Make("own", "/CN=other", "-addext subjectAltName=DNS:Node-0.Example,DNS:node-0,IP:10.0.0.1");
  const absl::StatusOr<TlsIdentity> read = Read("own", "own");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->names, ElementsAre("node-0.example", "node-0"))
      << "in lower case, and DNS names hide the other";
  EXPECT_THAT(read->addresses, ElementsAre("10.0.0.1"));
  EXPECT_TRUE(read->serves);
  EXPECT_LT(read->not_after, now_ + absl::Hours(24 * 31));
  EXPECT_GT(read->not_after, now_ + absl::Hours(24 * 29));
  EXPECT_THAT(read->key, HasSubstr("PRIVATE KEY"));
}

TEST_F(TlsFilesTest, IgnoresAddressesOfInvalidLength) {
  Make("ca", "/CN=authority");
  // DER encoding: addresses of 3, 4 and 17 bytes.
  Make("own", "/CN=own",
       "-addext "
       "2.5.29.17=DER:30:1e:87:03:01:02:03:87:04:0a:00:00:01:87:11:00:00:00:00:00:00:00:00:00:00:00:00:00:"
       "00:00:00:01");
  const absl::StatusOr<TlsIdentity> read = Read("own", "own");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->addresses, ElementsAre("10.0.0.1"));
}

TEST_F(TlsFilesTest, NodeCertificateIsNotForServers) {
  Make("ca", "/CN=authority");
  Make("own", "/CN=node-0", "-addext extendedKeyUsage=clientAuth");
  const absl::StatusOr<TlsIdentity> read = Read("own", "own");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->serves);
}

// Regression: they were in lower case without leading zeros, so searching a log for the number of openssl
// failed.
TEST_F(TlsFilesTest, SerialMatchesOpenssl) {
  for (const char* number : {"0x5a0c", "0xaff", "0x80", "0"}) {
    Make("own", "/CN=node-0", std::string("-set_serial ") + number);
    std::string pem;
    std::getline(std::ifstream(dir_.File("own.crt")), pem, '\0');
    const absl::StatusOr<std::string> serial = CertificateSerial(pem);
    ASSERT_TRUE(serial.ok()) << serial.status();
    EXPECT_EQ("serial=" + *serial, PrintedSerial(dir_.File("own")));
  }
}

TEST_F(TlsFilesTest, FallsBackToCommonName) {
  Make("ca", "/CN=Node-7");
  const absl::StatusOr<TlsIdentity> read = Read("ca", "ca");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->names, ElementsAre("node-7"));
}

TEST_F(TlsFilesTest, TrustOnlyNeedsNoCertificate) {
  Make("ca", "/CN=authority");
  const absl::StatusOr<TlsIdentity> read = ReadTlsFiles({dir_.File("ca.crt"), "", ""}, now_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->certificate, "");
}

TEST_F(TlsFilesTest, RejectsAMismatchedKey) {
  Make("ca", "/CN=authority");
  Make("own", "/CN=own");
  EXPECT_EQ(WhyNot("own", "ca"), dir_.File("ca.key") + ": is not the key of the certificate in " +
                                     dir_.File("own.crt") + " [INVALID_CERTIFICATE]");
}

TEST_F(TlsFilesTest, RejectsExpiredAndFutureCertificates) {
  Make("ca", "/CN=authority");
  Make("own", "/CN=own", "-days 10");
  now_ += absl::Hours(24 * 11);
  EXPECT_THAT(WhyNot("own", "own"), HasSubstr("own.crt: the certificate has expired, on 20"));
  now_ -= absl::Hours(24 * 62);
  EXPECT_THAT(WhyNot("own", "own"), HasSubstr("own.crt: the certificate is valid only from 20"));
}

// Regression: the dates of CAs were not checked, so a daemon started and then refused every connection.
TEST_F(TlsFilesTest, RejectsExpiredCertificateAuthorities) {
  Make("ca", "/CN=authority", "-days 10");
  Make("own", "/CN=own", "-days 60");
  now_ += absl::Hours(24 * 11);
  EXPECT_THAT(WhyNot("own", "own"), HasSubstr("ca.crt: the CA certificate has expired, on 20"));
  EXPECT_FALSE(ReadTlsFiles({dir_.File("ca.crt"), "", ""}, now_).ok()) << "as of fsdpctl";

  Make("new", "/CN=authority", "-days 20");
  Append("new.crt", "ca.crt");
  const absl::StatusOr<TlsIdentity> read = Read("own", "own");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->warning, HasSubstr("ca.crt: 1 of 2 CA certificates expired, the first on 20"));
  EXPECT_LT(read->trusted_not_after, now_);
  EXPECT_EQ(WarningsOf({*read, *read}), 1) << "once";

  now_ += absl::Hours(24 * 10);
  EXPECT_THAT(WhyNot("own", "own"), HasSubstr("ca.crt: all CA certificates have expired, the last on 20"));
}

TEST_F(TlsFilesTest, ValidCertificateAuthoritiesHaveNoWarning) {
  Make("ca", "/CN=authority");
  const absl::StatusOr<TlsIdentity> read = ReadTlsFiles({dir_.File("ca.crt"), "", ""}, now_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(WarningsOf({*read}), 0);
}

TEST_F(TlsFilesTest, ExpiryOfIncludesExpiredCertificates) {
  Make("ca", "/CN=authority");
  Make("own", "/CN=own");
  const TlsFiles files = {dir_.File("ca.crt"), dir_.File("own.crt"), dir_.File("own.key")};
  const absl::Time expected = Read("own", "own")->not_after;
  now_ += absl::Hours(24 * 31);
  ASSERT_FALSE(Read("own", "own").ok());
  EXPECT_EQ(ExpiryOf(files).certificate, expected);
  EXPECT_TRUE(ExpiryOf(files).trusted.has_value());
  Write("own.crt", "half");
  EXPECT_FALSE(ExpiryOf(files).certificate.has_value());
  EXPECT_TRUE(ExpiryOf(files).trusted.has_value());
}

TEST_F(TlsFilesTest, ErrorBelongsToOneFile) {
  Make("ca", "/CN=authority");
  Write("half.crt", "half");
  const auto blamed = [&](const std::string& message) {
    std::string files;
    for (const char* name : {"ca.crt", "half.crt", "ca.key"})
      if (IsErrorOfFile(dir_.File(name), message)) files += std::string(name) + " ";
    return files;
  };
  EXPECT_EQ(blamed(WhyNot("half", "ca")), "half.crt ");
  Make("own", "/CN=own");
  EXPECT_EQ(blamed(WhyNot("own", "ca")), "ca.key ");
  EXPECT_EQ(blamed(""), "");
}

TEST_F(TlsFilesTest, RejectsInvalidPem) {
  Make("ca", "/CN=authority");
  Write("half.crt", "-----BEGIN CERTIFICATE-----\nMIIB");
  Write("half.key", "");
  EXPECT_EQ(WhyNot("half", "ca"),
            dir_.File("half.crt") + ": contains no PEM certificate [INVALID_CERTIFICATE]");
  EXPECT_THAT(WhyNot("ca", "half"), HasSubstr("half.key: contains no PEM private key"));
  EXPECT_THAT(WhyNot("missing", "ca"), HasSubstr("missing.crt: No such file"));
}

TEST_F(TlsFilesTest, RejectsAWorldReadableKey) {
  Make("ca", "/CN=authority");
  ASSERT_EQ(chmod(dir_.File("ca.key").c_str(), 0644), 0);
  EXPECT_THAT(WhyNot("ca", "ca"), HasSubstr("every user of this machine can read it"));
}

TEST_F(TlsFilesTest, ReadSecretLineReturnsOneLine) {
  Write("token", "abc\n");
  EXPECT_EQ(*ReadSecretLine(dir_.File("token")), "abc");
  Write("token", "\n");
  EXPECT_THAT(std::string(ReadSecretLine(dir_.File("token")).status().message()), HasSubstr("is empty"));
  Write("token", "abc def\n");
  EXPECT_THAT(std::string(ReadSecretLine(dir_.File("token")).status().message()), HasSubstr("one line"));
  Write("token", "abc\n", 0644);
  EXPECT_THAT(std::string(ReadSecretLine(dir_.File("token")).status().message()), HasSubstr("chmod 600"));
}

TEST(CheckNodeInNames, ErrorHasBothNames) {
  EXPECT_TRUE(CheckNodeInNames("node-0", {"node-1", "node-0"}).ok());
  EXPECT_EQ(CheckNodeInNames("node-0", {"node-1", "*.example"}).message(),
            "certificate is not for node 'node-0' (it is for node-1, *.example)");
  EXPECT_THAT(std::string(CheckNodeInNames("node-0", {}).message()), HasSubstr("no name"));
}

}  // namespace
}  // namespace fsdpd
