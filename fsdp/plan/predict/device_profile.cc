#include "fsdp/plan/predict/device_profile.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cmath>

namespace fsdpd {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// Measured on one H200 in an NVLink node, LibTorch 2.11, NCCL 2.28, cuDNN 9.19, 2026-11-21. Matrix products,
// attention and memory: combined rates of a training step's kernels (Llama 8B layers and head, 8192 tokens,
// four GPUs, docs/bench). In isolation, products reach 700 TFLOP/s (FP8: 1270), a copy 4.3 TB/s. Attention in
// isolation, forward and backward: 402 and 315 TFLOP/s at 2048 tokens, 560 and 471 at 8192, 617 and 528 at
// 32768; with train.deterministic 319 and 177 at 8192, versus 622 and 530 in the same run.
//
// Minimum times of a kernel and an instruction: a step of four layers of width 256 has about 180 kernels in
// 20 compute instructions; 1.32 ms as a job, 0.95 ms as threads without progress words.
//
// Links: NCCL all-gather and reduce-scatter of 16 MB to 1 GB (40 us + bytes at 350 GB/s is within 5% from 64
// MB on), with a concurrent matrix product. Not measured: fp32 without TF32, and inter-node links (eight of
// 400 Gb/s); these are data-sheet values scaled by the ratio that the others achieved.
DeviceProfile H200() {
  DeviceProfile p;
  p.name = "h200";
  p.fp32_matmul_flops = 50 * kTera;
  p.half_matmul_flops = 660 * kTera;
  p.fp8_matmul_flops = 1250 * kTera;
  p.fp32_peak_flops = 67 * kTera;
  p.half_peak_flops = 989 * kTera;
  p.attention_forward_flops = 617 * kTera;
  p.attention_backward_flops = 505 * kTera;
  p.attention_overhead_tokens = 1000;
  p.deterministic_forward_slowdown = 1.95;
  p.deterministic_backward_slowdown = 2.9;
  p.memory_bytes_per_second = 2.4 * kTera;
  p.node_gather_bytes_per_second = 350 * kGiga;
  p.node_reduce_bytes_per_second = 350 * kGiga;
  p.network_gather_bytes_per_second = 310 * kGiga;
  p.network_reduce_bytes_per_second = 310 * kGiga;
  p.outer_gather_bytes_per_second = 40 * kGiga;
  p.outer_reduce_bytes_per_second = 40 * kGiga;
  p.collective_latency_seconds = 40e-6;
  p.kernel_seconds = 5.5e-6;
  p.instruction_seconds = 8e-6;
  p.compute_slowdown = 1.13;
  p.communication_slowdown = 1.4;
  p.memory_bytes = 139 * kGiB;
  return p;
}

// The same chip and links with the H100's memory bandwidth and size, from the data sheet: an estimate.
DeviceProfile H100() {
  DeviceProfile p = H200();
  p.name = "h100";
  p.memory_bytes_per_second = 1.7 * kTera;
  p.memory_bytes = 79 * kGiB;
  return p;
}

// One server core, and TCP over loopback: an order of magnitude, for tests and first experiments.
DeviceProfile Cpu() {
  DeviceProfile p;
  p.name = "cpu";
  p.fp32_matmul_flops = 50 * kGiga;
  p.half_matmul_flops = 10 * kGiga;
  p.fp32_peak_flops = 100 * kGiga;
  p.half_peak_flops = 100 * kGiga;
  p.attention_forward_flops = 20 * kGiga;
  p.attention_backward_flops = 20 * kGiga;
  p.memory_bytes_per_second = 10 * kGiga;
  p.node_gather_bytes_per_second = 1 * kGiga;
  p.node_reduce_bytes_per_second = 0.5 * kGiga;
  p.network_gather_bytes_per_second = 1 * kGiga;
  p.network_reduce_bytes_per_second = 0.5 * kGiga;
  p.outer_gather_bytes_per_second = 1 * kGiga;
  p.outer_reduce_bytes_per_second = 0.5 * kGiga;
  p.collective_latency_seconds = 200e-6;
  p.compute_slowdown = 1.3;
  p.communication_slowdown = 1.3;
  return p;
}

// The shorter of two formats that round-trips.
std::string NumberText(double value) {
  const std::string text = absl::StrCat(value);
  double read = 0;
  return absl::SimpleAtod(text, &read) && read == value ? text : absl::StrFormat("%.17g", value);
}

// Device names come from the driver: characters that JSON cannot hold unescaped become spaces.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' || c == '\\' || c < ' ' ? ' ' : c;
  return quoted + "\"";
}

const std::vector<DeviceProfile>& Shipped() {
  static const auto* profiles = new std::vector<DeviceProfile>{Cpu(), H100(), H200()};
  return *profiles;
}

}  // namespace

const DeviceProfile* FindProfile(const std::string& name) {
  for (const DeviceProfile& profile : Shipped()) {
    if (profile.name == name) return &profile;
  }
  return nullptr;
}

std::vector<std::string> ProfileNames() {
  std::vector<std::string> names;
  for (const DeviceProfile& profile : Shipped()) names.push_back(profile.name);
  return names;
}

const DeviceProfile& DefaultProfile(DeviceKind device) {
  return *FindProfile(device == DeviceKind::kCpu ? "cpu" : "h200");
}

const std::vector<ProfileField>& ProfileFields() {
  using P = DeviceProfile;
  static const auto* fields = new std::vector<ProfileField>{
      {"fp32_matmul_flops", &P::fp32_matmul_flops, 0, false},
      {"half_matmul_flops", &P::half_matmul_flops, 0, false},
      {"fp8_matmul_flops", &P::fp8_matmul_flops, 0, true},
      {"fp32_peak_flops", &P::fp32_peak_flops, 0, false},
      {"half_peak_flops", &P::half_peak_flops, 0, false},
      {"attention_forward_flops", &P::attention_forward_flops, 0, false},
      {"attention_backward_flops", &P::attention_backward_flops, 0, false},
      {"attention_overhead_tokens", &P::attention_overhead_tokens, 0, true},
      {"deterministic_forward_slowdown", &P::deterministic_forward_slowdown, 1, true},
      {"deterministic_backward_slowdown", &P::deterministic_backward_slowdown, 1, true},
      {"memory_bytes_per_second", &P::memory_bytes_per_second, 0, false},
      {"node_gather_bytes_per_second", &P::node_gather_bytes_per_second, 0, false},
      {"node_reduce_bytes_per_second", &P::node_reduce_bytes_per_second, 0, false},
      {"network_gather_bytes_per_second", &P::network_gather_bytes_per_second, 0, false},
      {"network_reduce_bytes_per_second", &P::network_reduce_bytes_per_second, 0, false},
      {"outer_gather_bytes_per_second", &P::outer_gather_bytes_per_second, 0, false},
      {"outer_reduce_bytes_per_second", &P::outer_reduce_bytes_per_second, 0, false},
      {"collective_latency_seconds", &P::collective_latency_seconds, 0, true},
      {"kernel_seconds", &P::kernel_seconds, 0, true},
      {"instruction_seconds", &P::instruction_seconds, 0, true},
      {"compute_slowdown", &P::compute_slowdown, 1, true},
      {"communication_slowdown", &P::communication_slowdown, 1, true},
      {"memory_bytes", &P::memory_bytes, 0, true},
  };
  return *fields;
}

Violations CheckProfile(const DeviceProfile& profile) {
  Violations violations;
  for (const ProfileField& field : ProfileFields()) {
    const double value = profile.*field.value;
    const bool high_enough = field.least_is_legal ? value >= field.least : value > field.least;
    if (std::isfinite(value) && high_enough) continue;
    const char* bound = field.least_is_legal ? "at least " : "more than ";
    violations.push_back({"profile_value", ViolationLevel::kError, field.key,
                          absl::StrCat("is ", value, " and must be ", bound, field.least),
                          absl::StrCat("write a number of ", bound, field.least), "", ""});
  }
  return violations;
}

std::string ToJson(const DeviceProfile& profile) {
  std::string json = absl::StrCat("{\n  \"name\": ", Quoted(profile.name));
  for (const ProfileField& field : ProfileFields()) {
    absl::StrAppend(&json, ",\n  \"", field.key, "\": ", NumberText(profile.*field.value));
  }
  return json + "\n}\n";
}

}  // namespace fsdpd
