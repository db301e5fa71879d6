// C = A*B by three loops on one core, row-major float32; A is MxK, B is KxN.
// The two differ in the order of the loops only. Compiled by r1_study.py.

// As the definition reads: one element of C after the other. B is read down its
// columns, N floats from one access to the next.
void ijk(int M, int N, int K, const float* A, const float* B, float* C) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {
            float sum = 0.0f;
            for (int k = 0; k < K; ++k)
                sum += A[(long)i * K + k] * B[(long)k * N + j];
            C[(long)i * N + j] = sum;
        }
}

// The two inner loops exchanged: B and C are read along their rows.
void ikj(int M, int N, int K, const float* A, const float* B, float* C) {
    for (int i = 0; i < M; ++i) {
        for (int j = 0; j < N; ++j)
            C[(long)i * N + j] = 0.0f;
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < N; ++j)
                C[(long)i * N + j] += A[(long)i * K + k] * B[(long)k * N + j];
    }
}
