#pragma once

namespace ottava::cpu {

/// oneDNN matmul primitives of one rank, made once per problem and reused.
class MatmulCache {};

}  // namespace ottava::cpu
