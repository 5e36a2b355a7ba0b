# The image of web, worker, beat and migrate: one image, four commands (docker-compose.yml).
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

COPY requirements.txt .
RUN pip install --require-hashes -r requirements.txt

COPY . .
RUN env DEVELOPMENT=0 python manage.py collectstatic --noinput --verbosity 0

# A number, so that an orchestrator can see that it is not root. It owns nothing and writes to /tmp only.
USER 10001:10001
CMD ["python", "manage.py", "check"]
