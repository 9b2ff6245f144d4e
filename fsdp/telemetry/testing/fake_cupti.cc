// Fake libcupti.so.13 that delivers a test's activities on flush, while their kind is enabled.
#include <cupti.h>

#include <cstring>
#include <set>
#include <vector>

namespace {

std::set<CUpti_ActivityKind> enabled;
CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
std::vector<CUpti_ActivityKernel10> kernels;
std::vector<CUpti_ActivityMemcpy6> copies;

size_t SizeOf(const CUpti_Activity* activity) {
  return activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY ? sizeof(CUpti_ActivityMemcpy6)
                                                      : sizeof(CUpti_ActivityKernel10);
}

template <typename Record>
size_t Append(const std::vector<Record>& records, uint8_t* buffer) {
  if (!records.empty()) std::memcpy(buffer, records.data(), records.size() * sizeof(Record));
  return records.size() * sizeof(Record);
}

}  // namespace

extern "C" {

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  request = requested;
  complete = completed;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  enabled.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  enabled.erase(kind);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t) {
  if (kernels.empty() && copies.empty()) return CUPTI_SUCCESS;
  uint8_t* buffer = nullptr;
  size_t bytes = 0, most = 0;
  request(&buffer, &bytes, &most);
  size_t used = Append(kernels, buffer);
  used += Append(copies, buffer + used);
  kernels.clear();
  copies.clear();
  complete(nullptr, 0, buffer, bytes, used);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t bytes, CUpti_Activity** record) {
  uint8_t* const next = *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + SizeOf(*record);
  if (next >= buffer + bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult, const char** text) {
  *text = "as the fake has it";
  return CUPTI_SUCCESS;
}

void FakeKernel(const char* name, uint32_t device, uint32_t stream, uint64_t begin, uint64_t end) {
  if (enabled.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 0) return;
  CUpti_ActivityKernel10 kernel = {};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.name = name;
  kernel.deviceId = device;
  kernel.streamId = stream;
  kernel.start = begin;
  kernel.end = end;
  kernels.push_back(kernel);
}

void FakeCopy(uint8_t kind, uint64_t bytes, uint32_t device, uint32_t stream, uint64_t begin, uint64_t end) {
  if (enabled.count(CUPTI_ACTIVITY_KIND_MEMCPY) == 0) return;
  CUpti_ActivityMemcpy6 copy = {};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = kind;
  copy.bytes = bytes;
  copy.deviceId = device;
  copy.streamId = stream;
  copy.start = begin;
  copy.end = end;
  copies.push_back(copy);
}
}
