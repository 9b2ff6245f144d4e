// Byte-level language model of three ordinary torch::nn::Modules. char_lm.cc has the additional code that
// fsdpd needs: which modules are units, how many activations each saves, and its forward.
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
