// A language model over the bytes of a text, written as anybody writes a model in LibTorch: three
// torch::nn::Modules. What fsdpd needs beyond them is in char_lm.cc: which modules are units, what each
// keeps, and how hidden states go through it.
#pragma once

#include "fsdp/model/autograd/module_unit.h"
#include "fsdp/model/user_model.h"

class CharLm : public fsdpd::UserModel {
 public:
  CharLm(int64_t layers, int64_t width) : layers_(layers), width_(width) {}

  fsdpd::ModelDescription Describe() const override;
  std::vector<std::unique_ptr<fsdpd::Unit>> MakeUnits(const fsdpd::ModelFacts& facts,
                                                      at::Device device) const override;

 private:
  const int64_t layers_;
  const int64_t width_;
};
