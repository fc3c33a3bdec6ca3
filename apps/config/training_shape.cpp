#include "apps/config/training_shape.h"

namespace ottava {

LlamaParameters parameter_table(const TrainingShape& shape) {
  LlamaParameters table = llama_parameters(shape.model);
  for (size_t p = 0; p < shape.groups.size(); ++p) table.specs[p].rule = shape.groups[p].rule;
  return table;
}

}  // namespace ottava
