"""Opcode names of capability 9.0 (bits 0-11 of an instruction), as the disassembler prints them.

The table covers the built-in tasks' first kernels (Triton 3.9, ptxas 12.9). For other opcodes the disassembler runs,
which takes a third of a second.
"""

from __future__ import annotations

_SM_90 = """
    BAR b1d; BRA 947; BSSY 945; BSYNC 941; CALL 944; CS2R 805; DEPBAR 91a; EXIT 94d; F2F 304; F2FP 23e; F2I 305;
    FADD 221 421 e21; FCHK 302; FFMA 223 423 823 c23 e23; FMNMX 209 809; FMUL 220 820 c20; FSEL 208 808; FSETP 20b
    80b; HADD2 230; HFMA2 435; HMMA 23c; HMUL2 232; I2F 306 906 d06; I2FP 245 c45; IABS 213 c13; IADD3 210 810
    c10; IMAD 224 225 227 424 824 825 827 c24 c25 c27 e24 e25; ISETP 20c 80c c0c; LDC b82; LDG 981; LDGDEPBAR 9af;
    LDGSTS fae; LDS 984; LDSM 83b; LEA 211 811 c11; LOP3 212 812 c12; MOV 202 802 c02; MUFU 308 908; NOP 918; P2R
    803; PLOP3 81c; PRMT 816; R2UR 2ca; RET 950; S2R 919; S2UR 9c3; SEL 207 807 c07; SGXT 81a; SHF 219 819; SHFL
    f89; STG 986; STS 388 988; STSM 844; UIADD3 290 890; UIMAD 2a4 2a5 4a4 8a4 8a5; UISETP 28c 88c; ULDC ab9; ULEA
    291; ULOP3 292 892; UMOV 882 c82; USEL 287 887; USHF 899; VIADD 836 c36; VIADDMNMX 846 e46; VIMNMX 248
"""
SM_90 = {int(code, 16): name for name, *codes in map(str.split, _SM_90.split(";")) for code in codes}
