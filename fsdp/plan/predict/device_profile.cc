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

// One H200 of a node with NVLink all to all, LibTorch 2.11, NCCL 2.28, cuDNN 9.19, 2026-11-21. Products,
// attention and memory are what the kernels of a training step reach together (Llama 8B's layers and head at
// 8192 tokens on four, docs/bench): alone, products reach 700 TFLOP/s (in FP8 1270), a copy 4.3 TB/s.
// Attention alone reaches 402 and 315 TFLOP/s to 2048 tokens, 560 and 471 to 8192, 617 and 528 to 32768; with
// train.deterministic 319 and 177 to 8192, beside 622 and 530 in the same call.
// A kernel and an instruction at least: a step of four layers of 256 is some 180 kernels in 20 instructions
// of the compute lane, 1.32 ms as a job, and 0.95 as threads, without words that show how far each lane is.
// Links: NCCL's all-gather and reduce-scatter of 16 MB to 1 GB (40 us + bytes at 350 GB/s meets them within
// 5% from 64 MB on), and a product beside each of them. fp32 without TF32 and the links between nodes (eight
// of 400 Gb/s) are not measured: what the data sheet says, times what the others reached of theirs.
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

// The same chip and links with slower and smaller memory, by the data sheet: an estimate.
DeviceProfile H100() {
  DeviceProfile p = H200();
  p.name = "h100";
  p.memory_bytes_per_second = 1.7 * kTera;
  p.memory_bytes = 79 * kGiB;
  return p;
}

// One core of a server and TCP over loopback: an order of magnitude, for tests and first looks.
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

// The shortest of two forms that gives the same value back.
std::string NumberText(double value) {
  const std::string text = absl::StrCat(value);
  double read = 0;
  return absl::SimpleAtod(text, &read) && read == value ? text : absl::StrFormat("%.17g", value);
}

// A device's name comes from its driver: what JSON cannot hold as it is becomes a space.
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
  Violations faults;
  for (const ProfileField& field : ProfileFields()) {
    const double value = profile.*field.value;
    const bool high_enough = field.least_is_legal ? value >= field.least : value > field.least;
    if (std::isfinite(value) && high_enough) continue;
    const char* bound = field.least_is_legal ? "at least " : "more than ";
    faults.push_back({"profile_value", FaultLevel::kError, field.key,
                      absl::StrCat("is ", value, " and has to be ", bound, field.least),
                      absl::StrCat("write a number of ", bound, field.least), "", ""});
  }
  return faults;
}

std::string ToJson(const DeviceProfile& profile) {
  std::string json = absl::StrCat("{\n  \"name\": ", Quoted(profile.name));
  for (const ProfileField& field : ProfileFields()) {
    absl::StrAppend(&json, ",\n  \"", field.key, "\": ", NumberText(profile.*field.value));
  }
  return json + "\n}\n";
}

}  // namespace fsdpd
