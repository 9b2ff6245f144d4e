#include "base/ids.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdpd {
namespace {

TEST(JobId, HasTheNameAndIsUnique) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewJobId("tiny-llama");
    EXPECT_EQ(id.substr(0, 11), "tiny-llama-");
    EXPECT_TRUE(ids.insert(id).second);
  }
}

TEST(Name, AcceptsDnsLabelsOnly) {
  for (const char* good : {"a", "tiny-llama", "llama3-8b", "x9"}) EXPECT_TRUE(CheckName(good).ok()) << good;
  for (const char* bad : {"", "-a", "a-", "A", "a b", "a_b", "9a", "../x", "\xc3\xa9"}) {
    EXPECT_FALSE(CheckName(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckName(std::string(41, 'a')).ok());
}

TEST(NodeName, AcceptsNodeNamesOfClouds) {
  for (const char* good : {
           "ip-10-0-113-7.eu-west-1.compute.internal",        // EKS
           "i-0a1b2c3d4e5f60718.us-west-2.compute.internal",  // EKS, resource names
           "gke-training-h100-pool-5f0c1d2e-x7kq",            // GKE
           "aks-gpunp-31415926-vmss00000a",                   // AKS
           "10.0.10.21",                                      // OKE
           "cn-hangzhou.192.168.0.17",                        // ACK
           "dgx-01",                                          // Bare metal
           "7",                                               // May start with a digit.
       }) {
    EXPECT_TRUE(CheckNodeName(good).ok()) << good << " " << CheckNodeName(good);
  }
  EXPECT_TRUE(CheckNodeName(std::string(63, 'a')).ok());
}

TEST(NodeName, RejectsInvalidSubdomains) {
  for (const char* bad :
       {"", ".", "a.", ".a", "a..b", "-a", "a-", "a.-b", "a-.b", "a_b", "a b", "a/b", "\xc3\xa9"}) {
    EXPECT_FALSE(CheckNodeName(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckNodeName(std::string(64, 'a')).ok());
  std::string longest = "a";
  while (longest.size() < 253) longest += ".a";
  EXPECT_TRUE(CheckNodeName(longest).ok());
  EXPECT_FALSE(CheckNodeName(longest + ".a").ok());
}

// HostedAttempt.job_id of preflight attempts.
TEST(NodeName, RejectsPreflight) {
  EXPECT_FALSE(CheckNodeName("preflight").ok());
  EXPECT_TRUE(CheckNodeName("preflight-0").ok());
}

TEST(NodeName, NodeNameOfIsLowerCase) {
  EXPECT_FALSE(CheckNodeName("DGX-01.Lab.example").ok());
  EXPECT_EQ(NodeNameOf("DGX-01.Lab.example"), "dgx-01.lab.example");
  EXPECT_TRUE(CheckNodeName(NodeNameOf("DGX-01.Lab.example")).ok());
}

}  // namespace
}  // namespace fsdpd
