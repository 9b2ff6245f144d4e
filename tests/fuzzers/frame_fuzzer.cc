// Fuzzer of frames: reading the input in pieces gives the same result as reading it whole.
#include "base/check.h"
#include "base/rank/frame.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd {
namespace {

struct Read {
  std::vector<std::string> payloads;
  bool ok = true;
  bool operator==(const Read& other) const { return payloads == other.payloads && ok == other.ok; }
};

Read InPieces(const uint8_t* data, size_t size, size_t piece) {
  FrameBuffer frames;
  Read read;
  for (size_t at = 0; at < size && read.ok; at += piece) {
    frames.Append(reinterpret_cast<const char*>(data) + at, std::min(piece, size - at));
    for (bool complete = true; complete && read.ok;) {
      std::string payload;
      complete = false;
      read.ok = frames.Next(&payload, &complete).ok();
      if (complete) read.payloads.push_back(std::move(payload));
    }
  }
  return read;
}

}  // namespace
}  // namespace fsdpd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fsdpd::Read whole = fsdpd::InPieces(data, size, size + 1);
  FSDPD_CHECK(whole == fsdpd::InPieces(data, size, 1));
  FSDPD_CHECK(whole == fsdpd::InPieces(data, size, 7));
  return 0;
}
