// Canonical names of Megatron options. Megatron-LM's flags, Megatron Bridge's sections and their versions use
// several names for one setting, and some flags negate the setting (--disable-bias-linear, --no-rope-fusion).
// The canonical name is the name of the value that is set: add_bias_linear, apply_rope_fusion.
#pragma once

#include <string>
#include <vector>

namespace fsdpd {

struct OptionName {
  std::string name;
  bool negated = false;  // Setting the flag turns the setting off.
};

// `written` is the flag without its two hyphens, and with _ for -.
OptionName NameOfFlag(const std::string& written);

// Name of `key` in `section` (empty: top level). Some sections reuse a name with another meaning, such as
// tokenizer.rank and nvrx_straggler.enabled. Their names get the section as a prefix: tokenizer_rank.
OptionName NameOfKey(const std::string& section, const std::string& key);

}  // namespace fsdpd
