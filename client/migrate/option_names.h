// The one name of an option. Megatron-LM's command line, Megatron Bridge's sections, and older and newer
// versions of both call one thing by several, and a flag may say the opposite of the setting it is about
// (--disable-bias-linear, --no-rope-fusion). Here a setting has the name of the value that it sets.
#pragma once

#include <string>
#include <vector>

namespace fsdpd {

struct OptionName {
  std::string name;
  bool negated = false;  // Setting the flag turns the setting off.
};

// `written` without the two hyphens, with _ for -.
OptionName NameOfFlag(const std::string& written);

// `key` of `section`, which is empty for a setting outside of one. Sections that use a name for something
// else than the rest do (tokenizer.rank, nvrx_straggler.enabled) are part of the name.
OptionName NameOfKey(const std::string& section, const std::string& key);

}  // namespace fsdpd
