#include "client/text/node_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'790'000'000);
constexpr int64_t kSecond = 1'000'000'000;

absl::Time Now() { return absl::FromUnixSeconds(1065); }

v1::Node Measured() {
  v1::Node node;
  node.set_name("node-7");
  v1::NodePreflight* preflight = node.mutable_preflight();
  preflight->set_unix_nanos(absl::ToUnixNanos(kNow - absl::Seconds(42)));
  preflight->mutable_result()->set_seconds(14);
  for (int i = 0; i < 2; ++i) {
    v1::PreflightDevice* device = preflight->mutable_result()->add_devices();
    device->set_device(i);
    device->set_name("NVIDIA H200");
    device->set_matmul_flops(i == 0 ? 676e12 : 402e12);
    device->set_memory_bytes_per_second(4.12e12);
    device->set_all_gather_bytes_per_second(301e9);
    device->add_pairs()->set_device(1 - i);
    device->mutable_pairs(0)->set_bytes_per_second(254e9);
  }
  v1::PreflightDevice* slow = preflight->mutable_result()->mutable_devices(1);
  slow->set_sm_clock_hertz(1155e6);
  slow->add_slowdowns()->set_reason("hardware_thermal");
  slow->mutable_slowdowns(0)->set_seconds(2.94);
  slow->set_nvlinks_up(18);
  slow->set_uncorrected_ecc_errors(0);
  slow->set_memory_bytes(int64_t{141} << 30);
  slow->set_used_bytes(int64_t{1} << 30);
  return node;
}

TEST(NodeText, PreflightHasRowPerDevice) {
  EXPECT_EQ(PreflightText(Measured(), kNow),
            "node-7 has passed its preflight 42 s ago, in 14 s\n"
            "  DEVICE  NAME         PRODUCTS     MEMORY     RING      SLOWEST PAIR     DRIVER\n"
            "  0       NVIDIA H200  676 TFLOP/s  4.12 TB/s  301 GB/s  254 GB/s with 1  -\n"
            "  1       NVIDIA H200  402 TFLOP/s  4.12 TB/s  301 GB/s  254 GB/s with 0  1155 MHz, "
            "hardware_thermal 2.9 s, 18 NVLinks, 0 ECC errors, 140.0 GiB free\n");
}

TEST(NodeText, PreflightShowsViolationsAndAcceptance) {
  v1::Node node = Measured();
  node.mutable_preflight()->add_violations("device 1: product rate 402 TFLOP/s, floor 540");
  EXPECT_THAT(PreflightText(node, kNow),
              HasSubstr("node-7 has not passed its preflight 42 s ago, in 14 s\n"
                        "  device 1: product rate 402 TFLOP/s, floor 540\n  DEVICE"));
  node.mutable_preflight()->set_accepted(true);
  EXPECT_THAT(PreflightText(node, kNow), HasSubstr("has not passed its preflight, which was accepted, 42 s"));
}

TEST(NodeText, ReportsMissingPreflight) {
  v1::Node node;
  node.set_name("node-7");
  EXPECT_EQ(PreflightText(node, kNow), "node-7 has no preflight result yet\n");
  node.set_in_preflight(true);
  EXPECT_THAT(DescribeNode(node, kNow), HasSubstr("node-7 is in preflight\n"));
  v1::Node failed;
  failed.set_name("node-7");
  failed.mutable_preflight()->set_unix_nanos(absl::ToUnixNanos(kNow));
  failed.mutable_preflight()->add_violations("device 0 was not done after 2 m 00 s");
  failed.mutable_preflight()->mutable_result()->set_seconds(120);
  EXPECT_EQ(PreflightText(failed, kNow),
            "node-7 has not passed its preflight 0 ms ago, in 2 m 00 s\n"
            "  device 0 was not done after 2 m 00 s\n");
}

TEST(NodeText, NodeTableShowsLostNodes) {
  v1::Node node;
  node.set_name("node-0");
  node.set_device(v1::DEVICE_CPU);
  node.set_slots(2);
  node.set_free_slots(1);
  node.set_memory_bytes_per_slot(int64_t{4} << 30);
  node.set_last_seen_unix_nanos(1063 * kSecond);
  EXPECT_EQ(NodeTable({node}, Now()),
            "NAME    STATUS  DEVICE  FREE  MEMORY/SLOT  SEEN     METRICS  VERSION\n"
            "node-0  lost    cpu     1/2   4.00 GiB     2 s ago  -        -\n");
  node.set_host_memory_bytes(int64_t{60} << 30);
  EXPECT_THAT(NodeTable({node}, Now(), /*width=*/0, /*wide=*/true),
              AllOf(HasSubstr("HOST MEMORY"), HasSubstr("60.0 GiB")));
  node.set_left(true);  // A regular shutdown needs no attention.
  EXPECT_THAT(NodeTable({node}, Now()), HasSubstr("\nnode-0  left    cpu "));
  node.set_left(false);
  node.set_not_ready(true);
  EXPECT_THAT(NodeTable({node}, Now()), HasSubstr("\nnode-0  not-ready  cpu "));
}

TEST(NodeText, NodeTableReportsRevokedCertificate) {
  v1::Node node;
  node.set_name("node-0");
  node.set_revoked_serial("5a0c");
  EXPECT_THAT(NodeTable({node}, Now()), HasSubstr("certificate is revoked (serial number 5a0c); give "));
}

TEST(NodeText, NodeTableShowsCordon) {
  v1::Node node;
  node.set_name("node-0");
  node.set_connected(true);
  node.mutable_cordon()->set_reason("a fan\nis broken");
  node.mutable_cordon()->set_unix_nanos(1005 * kSecond);
  v1::Node unseen;
  unseen.set_name("node-1");
  unseen.mutable_cordon()->set_automatic(true);
  unseen.mutable_cordon()->set_unix_nanos(1005 * kSecond);
  EXPECT_EQ(NodeTable({node, unseen}, Now()),
            "NAME    STATUS          DEVICE  FREE  MEMORY/SLOT  SEEN  METRICS  VERSION\n"
            "node-0  cordoned        -       0/0   0 B          -     -        -\n"
            "node-1  lost, cordoned  -       0/0   0 B          -     -        -\n"
            "node-0 is cordoned since 1970-01-01 00:16:45 UTC (1 m 00 s ago): a fan is broken\n"
            "node-1 is cordoned by the coordinator since 1970-01-01 00:16:45 UTC (1 m 00 s ago)\n");
}

}  // namespace
}  // namespace fsdpd
