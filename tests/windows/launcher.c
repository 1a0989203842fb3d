/* python.exe of a virtual environment on Windows: starts the interpreter that pyvenv.cfg names, as a child, tells it by
   __PYVENV_LAUNCHER__ who it stands for, takes it along when it ends, and returns its status. CPython's own does the same,
   and neither its archive for embedding nor Debian has that one. */
#include <stdio.h>
#include <wchar.h>
#include <windows.h>

static BOOL WINAPI leave_to_the_child(DWORD event) { return TRUE; }

static const wchar_t *arguments(const wchar_t *line) {
    BOOL quoted = FALSE;
    for (; *line && (quoted || *line != L' '); line++)
        if (*line == L'"') quoted = !quoted;
    return line;
}

int wmain(void) {
    static wchar_t self[MAX_PATH], described[MAX_PATH], home[MAX_PATH], line[32768];
    GetModuleFileNameW(NULL, self, MAX_PATH);
    wcscpy(described, self);
    for (int up = 0; up < 2; up++) *wcsrchr(described, L'\\') = 0;
    wcscat(described, L"\\pyvenv.cfg");
    FILE *config = _wfopen(described, L"r");
    if (!config || fwscanf(config, L"home = %259l[^\r\n]", home) != 1) return 106;
    fclose(config);
    SetEnvironmentVariableW(L"__PYVENV_LAUNCHER__", self);
    _snwprintf(line, 32767, L"\"%ls\\python.exe\"%ls", home, arguments(GetCommandLineW()));

    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {0};
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE | JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK;
    HANDLE job = CreateJobObjectW(NULL, NULL);
    SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof limits);
    SetConsoleCtrlHandler(leave_to_the_child, TRUE);
    STARTUPINFOW start = {.cb = sizeof start};
    GetStartupInfoW(&start);
    PROCESS_INFORMATION child;
    if (!CreateProcessW(NULL, line, NULL, NULL, TRUE, 0, NULL, NULL, &start, &child)) return 101;
    AssignProcessToJobObject(job, child.hProcess);
    WaitForSingleObject(child.hProcess, INFINITE);
    DWORD status = 1;
    GetExitCodeProcess(child.hProcess, &status);
    return (int)status;
}
