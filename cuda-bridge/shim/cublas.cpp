// A stand-in for cuBLAS beside that for the driver (driver.cpp, which this text follows in one file): the functions that
// src/cublas.rs loads, over the host's memory, checked more strictly than the library does. TIEBREAK_CUBLAS names it.
//
// Its orders of summation are its own, so that it differs from the CPU's native kernels as one GPU from another. With bfloat16
// and TF32 operands it sums as published models of tensor cores have it (docs/ROUNDING.md, section 4), with the parameters of
// compute capability 8.0, the worst of those that are allowed: 8 (TF32: 4) products at a time, aligned to the largest and cut off below
// its 24th bit, the sum cut to binary32.
//   TIEBREAK_SHIM_CUBLAS_FAILS=N   from the Nth on products fail
//   TIEBREAK_SHIM_CUBLAS_WRONG=N   every Nth product leaves a wrong bit
#include <cmath>

namespace {

enum { BLAS_OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { F32 = 0, F64 = 1, BF16 = 14, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_64F = 70, FAST_TF32 = 77 };

struct Blas {
    void* workspace = nullptr;
    bool settled = false;  // whether math mode and atomics are what reproducible products want
};

uint64_t products = 0;

// A matrix as op() gives it, element by element.
struct Operand {
    const void* at;
    int type;
    bool transposed;
    int64_t leading;

    double operator()(int64_t row, int64_t column) const {
        int64_t i = transposed ? column + row * leading : row + column * leading;
        if (type == F64) return ((const double*)at)[i];
        if (type == F32) return ((const float*)at)[i];
        uint32_t bits = (uint32_t)((const uint16_t*)at)[i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
};

// The first 19 bits of a binary32: sign, exponent and ten bits.
double tf32(double x) {
    float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits &= 0xffffe000u;
    memcpy(&value, &bits, 4);
    return value;
}

// The exponent of a finite number; that of 0 is below all others, and so are those of its products.
constexpr int NONE = -100000;
int exponent(double x) { return x == 0 ? NONE : std::isfinite(x) ? std::ilogb(x) : 0; }

// A row of an operand with its exponents.
struct Terms {
    const double* values;
    const int* exponents;
};

// What a tensor core makes of an accumulator and a few products, which it has exactly.
float fused(float sum, Terms a, Terms b, int64_t first, int64_t count) {
    constexpr int BITS = 24;
    int most = exponent(sum);
    double plain = sum;
    for (int64_t i = first; i < first + count; i++) {
        plain += a.values[i] * b.values[i];
        most = std::max(most, a.exponents[i] + b.exponents[i]);
    }
    if (!std::isfinite(plain) || most < NONE / 2) return (float)plain;
    // Products of binary32 numbers are far from binary64's limits, so that scaling one is exact.
    const double scale = std::ldexp(1.0, BITS - most);
    int64_t total = (int64_t)(sum * scale);
    for (int64_t i = first; i < first + count; i++) total += (int64_t)(a.values[i] * b.values[i] * scale);
    uint64_t absmax = (uint64_t)std::abs(total);
    if (absmax >> 24) {
        int extra = 40 - __builtin_clzll(absmax);
        absmax = absmax >> extra << extra;
    }
    return (float)std::ldexp(total < 0 ? -(double)absmax : (double)absmax, most - BITS);
}

float tensor_core(Terms a, Terms b, int64_t k, int64_t at_once) {
    // Two blocks share K, as they do where an output is too small to keep a GPU busy.
    int64_t half = k >= 64 ? k / 2 / 16 * 16 : k;
    float sums[2] = {0, 0};
    for (int64_t i = 0; i < k;) {
        int64_t count = std::min(at_once, (i < half ? half : k) - i);
        float& sum = sums[i < half ? 0 : 1];
        sum = fused(sum, a, b, i, count);
        i += count;
    }
    return sums[0] + sums[1];
}

// Several partial sums from the last term to the first, then a tree.
template <class T, int LANES> T backwards(const double* a, const double* b, int64_t k, bool fuse) {
    T lanes[LANES] = {};
    for (int64_t i = k - 1; i >= 0; i--) {
        T& lane = lanes[i % LANES];
        lane = fuse ? std::fma((T)a[i], (T)b[i], lane) : (T)(lane + (T)((T)a[i] * (T)b[i]));
    }
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
    if (lost) return NOT_INITIALIZED;
    *handle = new Blas;
    return BLAS_OK;
}

int cublasDestroy_v2(void* handle) {
    delete (Blas*)handle;
    return BLAS_OK;
}

int cublasGetVersion_v2(void*, int* version) {
    *version = 1;  // of no real one
    return BLAS_OK;
}

int cublasSetWorkspace_v2(void* handle, void* at, size_t bytes) {
    std::lock_guard guard(lock);
    if ((uint64_t)at % 256 || !inside((uint64_t)at, bytes)) return INVALID_VALUE;
    ((Blas*)handle)->workspace = at;
    return BLAS_OK;
}

int cublasSetMathMode(void*, unsigned mode) { return mode == 16 ? BLAS_OK : INVALID_VALUE; }

int cublasSetAtomicsMode(void* handle, int mode) {
    ((Blas*)handle)->settled = mode == 0;
    return BLAS_OK;
}

int cublasGemmStridedBatchedEx(void* handle, int operation_a, int operation_b, int m, int n, int k, const void* alpha, const void* a,
                               int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb, long long stride_b,
                               const void* beta, void* c, int type_c, int ldc, long long stride_c, int batch, int compute, int algorithm) {
    after_transfers();
    std::lock_guard guard(lock);
    if (lost) return EXECUTION_FAILED;
    products++;
    uint64_t fails = setting("TIEBREAK_SHIM_CUBLAS_FAILS", 0), wrong = setting("TIEBREAK_SHIM_CUBLAS_WRONG", 0);
    if (fails && products >= fails) return EXECUTION_FAILED;
    const Blas& blas = *(Blas*)handle;
    if (!blas.workspace || !blas.settled || algorithm != -1) return INVALID_VALUE;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || operation_a > 1 || operation_b > 1) return INVALID_VALUE;
    if (lda < std::max(1, operation_a ? k : m) || ldb < std::max(1, operation_b ? n : k) || ldc < std::max(1, m)) return INVALID_VALUE;
    const bool wide = compute == COMPUTE_64F;
    const int operands = wide ? F64 : compute == COMPUTE_32F ? BF16 : F32;
    if (type_a != operands || type_b != operands || type_c != (wide ? F64 : F32)) return NOT_SUPPORTED;
    if (!wide && compute != COMPUTE_32F && compute != COMPUTE_32F_PEDANTIC && compute != FAST_TF32) return NOT_SUPPORTED;
    const double one = wide ? *(const double*)alpha : *(const float*)alpha, zero = wide ? *(const double*)beta : *(const float*)beta;
    if (one != 1 || zero != 0) return NOT_SUPPORTED;
    if (m == 0 || n == 0 || k == 0 || batch == 0) return INVALID_VALUE;  // nobody of ours asks for it
    const int64_t bytes = operands == F64 ? 8 : operands == F32 ? 4 : 2, bytes_c = wide ? 8 : 4;
    auto fits = [&](const void* at, int64_t stride, int64_t leading, int64_t columns, int64_t rows, int64_t size) {
        return (uint64_t)at % size == 0 && stride >= 0 &&
            inside((uint64_t)at, size_t(size * ((batch - 1) * stride + (columns - 1) * leading + rows)));
    };
    if (!fits(a, stride_a, lda, operation_a ? m : k, operation_a ? k : m, bytes)) return INVALID_VALUE;
    if (!fits(b, stride_b, ldb, operation_b ? k : n, operation_b ? n : k, bytes)) return INVALID_VALUE;
    if (!fits(c, stride_c, ldc, n, m, bytes_c) || (batch > 1 && stride_c < (int64_t)ldc * n)) return INVALID_VALUE;

    give_next();
    give((uint64_t)c);
    std::vector<double> rows((size_t)m * k), columns((size_t)n * k);
    std::vector<int> of_rows(rows.size()), of_columns(columns.size());
    for (int64_t sample = 0; sample < batch; sample++) {
        Operand left{(const char*)a + sample * stride_a * bytes, type_a, operation_a == 1, lda};
        Operand right{(const char*)b + sample * stride_b * bytes, type_b, operation_b == 1, ldb};
        for (int64_t l = 0; l < k; l++) {
            for (int64_t i = 0; i < m; i++) rows[i * k + l] = compute == FAST_TF32 ? tf32(left(i, l)) : left(i, l);
            for (int64_t j = 0; j < n; j++) columns[j * k + l] = compute == FAST_TF32 ? tf32(right(l, j)) : right(l, j);
        }
        std::transform(rows.begin(), rows.end(), of_rows.begin(), exponent);
        std::transform(columns.begin(), columns.end(), of_columns.begin(), exponent);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                const double *x = &rows[i * k], *y = &columns[j * k];
                const int64_t at = sample * stride_c + i + j * ldc;
                if (wide) ((double*)c)[at] = backwards<double, 4>(x, y, k, false);
                else if (compute == COMPUTE_32F_PEDANTIC) ((float*)c)[at] = backwards<float, 8>(x, y, k, true);
                else ((float*)c)[at] = tensor_core({x, &of_rows[i * k]}, {y, &of_columns[j * k]}, k, operands == BF16 ? 8 : 4);
            }
    }
    if (!canaries()) return lose("a product wrote past a buffer"), EXECUTION_FAILED;
    // The exponent's last bit: a value that is wrong, not one that is rounded.
    if (wrong && products % wrong == 0) ((unsigned*)c)[wide ? 1 : 0] ^= wide ? 1u << 20 : 1u << 23;
    return BLAS_OK;
}

}  // extern "C"
