# A donor where NVIDIA's own images can't be pulled: CUDA 11.8's compiler, as Debian packages it (non-free), laid out in
# /usr/local/cuda as NVIDIA does. `docker build -t NAME - < debian-toolkit.Dockerfile`
FROM debian:bookworm-slim AS packages
RUN sed -i 's/ main$/ main contrib non-free/' /etc/apt/sources.list && apt-get update -q -o Acquire::Retries=3
WORKDIR /packages
# Only what nvcc is made of: with all that these packages depend on it would be twice as much.
RUN apt-get download -q nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4 libcudart11.0 libcu++-dev \
    && for package in *.deb; do dpkg-deb -x "$package" /unpacked; done && rm -- *.deb
WORKDIR /cuda
# Not Debian's wrappers in its bin/g++ and bin/gcc: who compiles says which compiler nvcc is to use.
RUN mkdir -p bin nvvm/bin lib64 \
    && cp -a /unpacked/usr/lib/nvidia-cuda-toolkit/bin/nvcc /unpacked/usr/lib/nvidia-cuda-toolkit/bin/crt bin/ \
    && for tool in bin2c cudafe++ fatbinary nvlink ptxas __nvcc_device_query; do cp -a /unpacked/usr/bin/$tool bin/; done \
    && cp -a /unpacked/usr/lib/nvidia-cuda-toolkit/bin/cicc nvvm/bin/ \
    && cp -a /unpacked/usr/lib/nvidia-cuda-toolkit/libdevice nvvm/ \
    && cp -a /unpacked/usr/include . \
    && cp -a /unpacked/usr/lib/x86_64-linux-gnu/libcudart* /unpacked/usr/lib/x86_64-linux-gnu/libcudadevrt.a lib64/ \
    && printf '%s\n' 'TOP = $(_HERE_)/..' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
        'LD_LIBRARY_PATH += $(TOP)/lib64:' 'PATH += $(TOP)/nvvm/bin:$(_HERE_):' \
        'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' 'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"' > bin/nvcc.profile

FROM scratch
COPY --from=packages /cuda /usr/local/cuda
