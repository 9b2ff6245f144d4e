// Identity of the frozen weights that LoRA adapters were trained with. Native checkpoints record it as text.
//
// Pure.
#pragma once

#include <string>

namespace fsdpd {

// Ends the type of a label if matrices are in NF4: "bf16+nf4".
inline constexpr char kNf4Suffix[] = "+nf4";

struct BaseLabel {
  std::string type;  // In which the weights are stored: "bf16". Empty: no frozen weights.
  std::string hash;  // As FingerprintOfBase() computes it.
  std::string path;  // The checkpoint they were read from; empty: initial values.

  bool empty() const { return type.empty(); }
  // "bf16 0123456789abcdef /models/llama".
  std::string Text() const;
};

// Of Text(). Missing fields are empty.
BaseLabel ParseBaseLabel(const std::string& text);

}  // namespace fsdpd
